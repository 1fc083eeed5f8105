//! Outline of a block on a mesh: its variables, the costs of their options without conversions, and the
//! layouts at its edges. It does not depend on links.
//!
//! An outline is computed once for each mesh. For the same block on other links, or with other sharding of
//! parameters, the outline is the same and only prices differ.
//!
//! Law: a priced outline equals the formulation computed from scratch.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use thinwire_model::{Graph, Layout, Sides, TensorId};

use super::builder::Builder;
use super::{Block, Formulation, Pricing, TransportOptions, Variable, Wire};
use crate::Error;
use crate::cost::{Cost, GradientTransport};

/// Choices of a block, before parameters and conversions are priced.
#[derive(Debug)]
pub struct Outline {
    /// Cost of each option without conversions, for every variable.
    pub(super) options: Vec<Vec<Cost>>,
    pub(super) edges: Vec<TensorEdge>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) variables: Arc<[Variable]>,
    pub(super) entry: Option<usize>,
    pub(super) exit: Option<usize>,
    /// Order in which all variables but those at the ends are eliminated.
    pub(super) order: Arc<[usize]>,
}

/// Parameter that a variable's node reads.
#[derive(Debug)]
pub(super) struct Parameter {
    pub variable: usize,
    pub tensor: TensorId,
    /// Distinct layouts of the parameter.
    pub sides: Vec<Sides>,
    /// Layout of the parameter under each option, as an index.
    pub of: Vec<usize>,
}

/// Two variables between which a tensor travels, and its gradient in the other direction.
#[derive(Debug)]
pub(super) struct TensorEdge {
    pub ends: [usize; 2],
    pub tensor: TensorId,
    /// Whether the tensor goes from the second variable to the first.
    pub turned: bool,
    pub forward: Conversions,
    pub backward: Conversions,
    /// Seconds for which the reader still computes after the gradient to be sent is ready, for every
    /// option.
    pub behind_s: Vec<f64>,
}

/// Distinct layouts at both ends of an edge, with the layout of every option as an index.
#[derive(Debug)]
pub(super) struct Conversions {
    pub from: Vec<Layout>,
    pub to: Vec<Layout>,
    pub rows: Vec<usize>,
    pub columns: Vec<usize>,
}

impl Outline {
    /// Returns the outline of a block on a mesh; `pricing` prices options alone.
    ///
    /// # Errors
    /// Returns an error if a node reads a tensor that neither the block, nor the data, nor `entry` provides,
    /// or if too many tensors are alive at once for the tables of an exact search to fit in memory.
    pub fn new(block: &Block<'_>, mesh: &[usize], pricing: &dyn Pricing) -> Result<Self, Error> {
        let mut builder = Builder::new(block, mesh, pricing);
        for node in block.nodes.clone() {
            builder.node(node);
        }
        builder.tensors()?;
        builder.finish()
    }

    /// Returns the formulation of the block at prices of parameters and conversions.
    pub fn priced(&self, graph: &Graph, pricing: &dyn Pricing) -> Formulation {
        let mut options = self.options.clone();
        let mut transports = BTreeMap::new();
        for parameter in &self.parameters {
            let costs = &mut options[parameter.variable];
            parameter.price(graph, pricing, costs, &mut transports);
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

    /// Returns the order in which all variables but those at the ends are eliminated.
    pub fn order(&self) -> &Arc<[usize]> {
        &self.order
    }
}

impl Parameter {
    /// Adds the parameter's cost to each option of its node, and its other transports to
    /// `transports`.
    fn price(
        &self,
        graph: &Graph,
        pricing: &dyn Pricing,
        costs: &mut [Cost],
        transports: &mut BTreeMap<usize, Vec<Vec<TransportOptions>>>,
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

/// Option of a reader: the layouts of the tensor and of its gradient, as indices, and the seconds of
/// computation after the gradient.
type Reader<'a> = ((&'a usize, &'a usize), &'a f64);

impl TensorEdge {
    /// Reorders the table so that the end that is eliminated first comes last.
    pub fn turn(&mut self, order: &[usize]) {
        let [first, second] = self.ends;
        let next = order.iter().find(|variable| self.ends.contains(variable));
        if next == Some(&first) {
            (self.ends, self.turned) = ([second, first], !self.turned);
        }
    }

    /// Returns the conversion times of every pair of options of the two variables.
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
