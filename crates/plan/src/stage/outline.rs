//! A block on a mesh as far as no link touches it: its variables, what their options cost alone, and
//! which layouts meet at its edges.
//!
//! It is worked out once for each mesh; the same block on other links, or with parameters divided
//! otherwise, is the same outline with other prices.
//!
//! Law: an outline that is priced is the formulation worked out anew.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use thinwire_model::{Graph, Layout, Sides, TensorId};

use super::builder::Builder;
use super::formulation::{Block, Formulation, TransportOptions, Variable};
use super::pricing::{Pricing, Wire};
use crate::Error;
use crate::cost::{Cost, GradientTransport};

/// A block's choices before parameters and what travels are priced.
#[derive(Debug)]
pub struct Outline {
    /// For every variable the cost of each option alone.
    pub(super) options: Vec<Vec<Cost>>,
    pub(super) edges: Vec<TensorEdge>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) variables: Arc<[Variable]>,
    pub(super) entry: Option<usize>,
    pub(super) exit: Option<usize>,
    /// The order in which all variables but those at the ends are eliminated.
    pub(super) order: Arc<[usize]>,
}

/// A parameter that a variable's node reads.
#[derive(Debug)]
pub(super) struct Parameter {
    pub variable: usize,
    pub tensor: TensorId,
    /// The choices in which it may lie.
    pub sides: Vec<Sides>,
    /// Which of them it has under each option.
    pub of: Vec<usize>,
}

/// Two variables between which a tensor travels, and its gradient back.
#[derive(Debug)]
pub(super) struct TensorEdge {
    pub ends: [usize; 2],
    pub tensor: TensorId,
    /// Whether it goes from the second to the first.
    pub turned: bool,
    pub forward: Conversions,
    pub backward: Conversions,
    /// For every option of the reader what it computes behind the gradient that travels: seconds.
    pub behind_s: Vec<f64>,
}

/// The layouts from and to which a tensor travels, each once, and for every option of either end
/// which of them it has.
#[derive(Debug)]
pub(super) struct Conversions {
    pub from: Vec<Layout>,
    pub to: Vec<Layout>,
    pub rows: Vec<usize>,
    pub columns: Vec<usize>,
}

impl Outline {
    /// The outline of a block on a mesh; of `pricing` only what options cost alone is asked.
    ///
    /// # Errors
    /// If a node reads what neither the block computes, nor the data, nor `entry` gives.
    pub fn new(block: &Block<'_>, mesh: &[usize], pricing: &dyn Pricing) -> Result<Self, Error> {
        let mut builder = Builder::new(block, mesh, pricing);
        for node in block.nodes.clone() {
            builder.node(node);
        }
        builder.tensors()?;
        Ok(builder.finish())
    }

    /// The same block with parameters and what travels at these prices.
    pub fn priced(&self, graph: &Graph, pricing: &dyn Pricing) -> Formulation {
        let mut options = self.options.clone();
        let mut transports = BTreeMap::new();
        for parameter in &self.parameters {
            parameter.price(graph, pricing, (&mut options[parameter.variable], &mut transports));
        }
        Formulation {
            options,
            edges: self.edges.iter().map(|edge| (edge.ends, edge.wires(graph, pricing))).collect(),
            transports,
            variables: Arc::clone(&self.variables),
            entry: self.entry,
            exit: self.exit,
        }
    }

    /// The order in which all variables but those at the ends are eliminated.
    pub fn order(&self) -> &Arc<[usize]> {
        &self.order
    }
}

impl Parameter {
    /// Adds what the parameter costs to each option of its node, and how else it may be treated to
    /// what is transports.
    fn price(
        &self,
        graph: &Graph,
        pricing: &dyn Pricing,
        (costs, transports): (&mut [Cost], &mut BTreeMap<usize, Vec<Vec<TransportOptions>>>),
    ) {
        let shape = &graph.tensors[self.tensor].shape;
        let usual: Vec<Cost> =
            self.sides.iter().map(|sides| pricing.parameter(shape, sides)).collect();
        costs.iter_mut().zip(&self.of).for_each(|(sum, one)| *sum += usual[*one]);
        let choices = self.sides.iter().map(|sides| pricing.transports(shape, sides).into());
        let choices: Vec<Rc<[GradientTransport]>> = choices.collect();
        if choices.iter().all(|choices| choices.is_empty()) {
            return;
        }
        let empty = || vec![Vec::new(); self.of.len()];
        let options = transports.entry(self.variable).or_insert_with(empty);
        for (option, choices) in options.iter_mut().zip(self.of.iter().map(|one| &choices[*one])) {
            if !choices.is_empty() {
                option
                    .push(TransportOptions { tensor: self.tensor, transports: Rc::clone(choices) });
            }
        }
    }
}

/// An option of what reads a tensor: the layouts of the tensor and of its gradient, and what is
/// computed behind the latter.
type Reader<'a> = ((&'a usize, &'a usize), &'a f64);

impl TensorEdge {
    /// Has the end that is eliminated first stand last.
    pub fn turn(&mut self, order: &[usize]) {
        let [first, second] = self.ends;
        let next = order.iter().find(|variable| self.ends.contains(variable));
        if next == Some(&first) {
            (self.ends, self.turned) = ([second, first], !self.turned);
        }
    }

    /// What every pair of options of the two variables costs.
    fn wires(&self, graph: &Graph, pricing: &dyn Pricing) -> Vec<Wire> {
        let shape = &graph.tensors[self.tensor].shape;
        let seconds = |way: &Conversions| pricing.conversions_s(shape, &way.from, &way.to);
        let (forward_s, backward_s) = (seconds(&self.forward), seconds(&self.backward));
        let (there, back) = (&self.forward, &self.backward);
        let hides = self.behind_s.iter().any(|behind_s| *behind_s > 0.0);
        let own_s = if hides { pricing.own_s(shape, &back.from, &back.to) } else { None };
        let wire = |(row, end): (&usize, &usize), ((column, start), behind_s): Reader<'_>| {
            let place = start * back.to.len() + end;
            let forward_s = forward_s[row * there.to.len() + column];
            let wire = Wire { forward_s, backward_s: backward_s[place], overlapped_s: 0.0 };
            own_s.as_ref().map_or(wire, |own_s| wire.overlapped(*behind_s, own_s[place]))
        };
        let writers = || there.rows.iter().zip(&back.columns);
        let readers = || there.columns.iter().zip(&back.rows).zip(&self.behind_s);
        let mut wires = Vec::with_capacity(there.rows.len() * there.columns.len());
        match self.turned {
            false => {
                writers().for_each(|one| wires.extend(readers().map(|other| wire(one, other))))
            }
            true => readers().for_each(|other| wires.extend(writers().map(|one| wire(one, other)))),
        }
        wires
    }
}
