//! A block of a model on a mesh, as a problem of choice.
//!
//! Every node is a variable, its strategies the options. So is every tensor that several nodes read
//! or that enters or leaves the block: its options are the layouts that its writer gives and its
//! readers want, so that what two readers want alike is converted once and their gradients are
//! added before they are converted. Where a tensor has one reader, writer and reader share an edge.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use thinwire_model::{Graph, NodeId, Sides, Strategy, TensorId};

use super::frontier::{Eliminated, Table, eliminate_tables};
use super::outline::Outline;
use super::pricing::{Pricing, Weights, Wire};
use super::problem::{Edge, Price, Problem};
use crate::Error;
use crate::cost::{Cost, GradientTransport};

/// The part of a graph that is planned at once.
#[derive(Clone, Debug)]
pub struct Block<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Its nodes.
    pub nodes: Range<NodeId>,
    /// The tensor that enters, and the layouts that it may have.
    pub entry: Option<(TensorId, Vec<Sides>)>,
    /// The tensor that leaves, and the layouts that it may have.
    pub exit: Option<(TensorId, Vec<Sides>)>,
}

/// What a variable stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Variable {
    /// A node, and its strategies.
    Node(NodeId, Vec<Strategy>),
    /// A tensor between nodes, and its layouts.
    Tensor(TensorId, Vec<Sides>),
}

/// A parameter that may be divided, or its gradient travel, otherwise than usual.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportOptions {
    /// The parameter.
    pub tensor: TensorId,
    /// How, beside as is usual.
    pub transports: Rc<[GradientTransport]>,
}

impl TransportOptions {
    /// The cheapest way, if one is cheaper than the usual one.
    pub fn best(&self, weights: &Weights, seconds_per_byte: f64) -> Option<&GradientTransport> {
        let price = |way: &&GradientTransport| weights.price(&way.change).at(seconds_per_byte);
        let best = self.transports.iter().min_by(|a, b| price(a).total_cmp(&price(b)));
        best.filter(|best| price(best) < 0.0)
    }
}

/// A block's choices, with their costs, and what its variables stand for.
#[derive(Clone, Debug)]
pub struct Formulation {
    /// For every variable the cost of each option.
    pub options: Vec<Vec<Cost>>,
    /// For pairs of variables what every pair of their options costs.
    pub edges: Vec<([usize; 2], Vec<Wire>)>,
    /// For variables with parameters that may be treated otherwise: these parameters, by option.
    pub transports: BTreeMap<usize, Vec<Vec<TransportOptions>>>,
    /// One per variable.
    pub variables: Arc<[Variable]>,
    /// The variable of the tensor that enters.
    pub entry: Option<usize>,
    /// The variable of the tensor that leaves.
    pub exit: Option<usize>,
}

impl Formulation {
    /// The problem of a block on a mesh.
    ///
    /// # Errors
    /// If a node reads what neither the block computes, nor the data, nor `entry` gives.
    pub fn new(block: &Block<'_>, mesh: &[usize], pricing: &dyn Pricing) -> Result<Self, Error> {
        Ok(Outline::new(block, mesh, pricing)?.priced(block.graph, pricing))
    }

    /// The problem that it is where costs count so much; gradients travel as is best at this price
    /// per byte.
    pub fn problem(&self, weights: &Weights, seconds_per_byte: f64) -> Problem {
        let wire = |wire: &Wire| Price::seconds(weights.wire_s(wire));
        let edge = |(ends, wires): &([usize; 2], Vec<Wire>)| Edge {
            ends: *ends,
            prices: wires.iter().map(wire).collect(),
        };
        Problem {
            options: self.prices(weights, seconds_per_byte, |price| price),
            edges: self.edges.iter().map(edge).collect(),
        }
    }

    /// The same with all variables but its ends eliminated, in this order.
    pub fn eliminated(
        &self,
        order: &[usize],
        weights: &Weights,
        seconds_per_byte: f64,
    ) -> Eliminated {
        let alone = self.prices(weights, seconds_per_byte, |price| price.at(seconds_per_byte));
        let alone = alone.into_iter().enumerate();
        let alone = alone.map(|(variable, costs)| Table::new(&[variable], costs));
        let pairs = self.edges.iter().map(|(ends, wires)| {
            Table::new(ends, wires.iter().map(|wire| weights.wire_s(wire)).collect())
        });
        let sizes = self.options.iter().map(Vec::len).collect();
        let keep: Vec<usize> = [self.entry, self.exit].into_iter().flatten().collect();
        eliminate_tables(order, sizes, alone.chain(pairs).collect(), &keep)
    }

    /// For every variable what each option costs with its parameters, as `of` counts it.
    fn prices<T>(
        &self,
        weights: &Weights,
        seconds_per_byte: f64,
        of: impl Fn(Price) -> T,
    ) -> Vec<Vec<T>> {
        let option = |variable: usize, option: usize, cost: &Cost| {
            let saved = self.best(variable, option, weights, seconds_per_byte);
            of(saved.fold(weights.price(cost), |sum, way| sum + weights.price(&way.change)))
        };
        let options = |(variable, costs): (usize, &Vec<Cost>)| {
            let costs = costs.iter().enumerate();
            costs.map(|(place, cost)| option(variable, place, cost)).collect()
        };
        self.options.iter().enumerate().map(options).collect()
    }

    /// What a choice costs where nothing is done otherwise than usual.
    pub fn cost(&self, choices: &[usize]) -> Cost {
        let chosen = self.options.iter().zip(choices).map(|(costs, choice)| costs[*choice]);
        let mut sum: Cost = chosen.sum();
        for ([first, second], wires) in &self.edges {
            let wire = wires[choices[*first] * self.options[*second].len() + choices[*second]];
            sum.forward_wire_s += wire.forward_s;
            sum.backward_wire_s += wire.backward_s;
            sum.overlapped_s += wire.overlapped_s;
        }
        sum
    }

    /// What one variable of a choice costs, and what travels to and from it.
    pub fn part(&self, variable: usize, choices: &[usize]) -> (Cost, Wire) {
        let mut sum = Wire::default();
        for ([first, second], wires) in &self.edges {
            if [first, second].contains(&&variable) {
                let wire = wires[choices[*first] * self.options[*second].len() + choices[*second]];
                sum.forward_s += wire.forward_s;
                sum.backward_s += wire.backward_s;
                sum.overlapped_s += wire.overlapped_s;
            }
        }
        (self.options[variable][choices[variable]], sum)
    }

    /// What changes where gradients travel, and parameters are divided, as is best.
    pub fn saved(&self, choices: &[usize], weights: &Weights, seconds_per_byte: f64) -> Cost {
        let chosen = self.transports.keys().map(|variable| (*variable, choices[*variable]));
        let best = |(variable, option)| self.best(variable, option, weights, seconds_per_byte);
        chosen.flat_map(best).map(|way| way.change).sum()
    }

    /// The parameters of a choice that may be treated otherwise.
    pub fn transport_options<'a>(
        &'a self,
        choices: &'a [usize],
    ) -> impl Iterator<Item = &'a TransportOptions> {
        let variables =
            (0..self.options.len()).filter_map(|at| Some((at, self.transports.get(&at)?)));
        variables.flat_map(|(variable, options)| &options[choices[variable]])
    }

    fn best<'a>(
        &'a self,
        variable: usize,
        option: usize,
        weights: &'a Weights,
        seconds_per_byte: f64,
    ) -> impl Iterator<Item = &'a GradientTransport> {
        let options = self.transports.get(&variable).into_iter();
        let parameters = options.flat_map(move |options| &options[option]);
        parameters
            .filter_map(move |transport_options| transport_options.best(weights, seconds_per_byte))
    }

    /// The strategies of a choice, by node.
    pub fn strategies<'a>(
        &'a self,
        choices: &'a [usize],
    ) -> impl Iterator<Item = (NodeId, &'a Strategy)> {
        let pairs = self.variables.iter().zip(choices);
        pairs.filter_map(|(variable, choice)| match variable {
            Variable::Node(node, strategies) => Some((*node, &strategies[*choice])),
            Variable::Tensor(..) => None,
        })
    }
}
