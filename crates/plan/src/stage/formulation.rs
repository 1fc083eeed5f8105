//! Formulation of a block on a mesh as a problem of choice.
//!
//! Every node is a variable, and its strategies are the options. Every tensor that several nodes read, or
//! that enters or leaves the block, is a variable too: its options are the layouts that its writer gives and
//! its readers need. Two readers that need the same layout share one conversion, and their gradients are
//! added before they are converted. If a tensor has one reader, writer and reader share an edge.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use thinwire_model::{Graph, NodeId, Sides, Strategy, TensorId};

use super::{Edge, Eliminated, Price, Problem, Weights, Wire, eliminate};
use crate::cost::{Cost, GradientTransport};

/// Part of a graph that is planned at once.
#[derive(Clone, Debug)]
pub struct Block<'a> {
    /// Graph.
    pub graph: &'a Graph,
    /// Nodes of the block.
    pub nodes: Range<NodeId>,
    /// Tensor that enters the block, with its possible layouts.
    pub entry: Option<(TensorId, Vec<Sides>)>,
    /// Tensor that leaves the block, with its possible layouts.
    pub exit: Option<(TensorId, Vec<Sides>)>,
}

/// Variable of the problem.
#[derive(Clone, Debug, PartialEq)]
pub enum Variable {
    /// Node with its strategies.
    Node(NodeId, Vec<Strategy>),
    /// Tensor between nodes with its layouts.
    Tensor(TensorId, Vec<Sides>),
}

/// Parameter with other transports than the usual one.
#[derive(Clone, Debug, PartialEq)]
pub struct TransportOptions {
    /// Parameter.
    pub tensor: TensorId,
    /// Transports other than the usual one.
    pub transports: Rc<[GradientTransport]>,
}

impl TransportOptions {
    /// Returns the cheapest transport, if one is cheaper than the usual one.
    pub fn best(&self, weights: &Weights, seconds_per_byte: f64) -> Option<&GradientTransport> {
        let price = |way: &&GradientTransport| weights.price(&way.change).at(seconds_per_byte);
        let best = self.transports.iter().min_by(|a, b| price(a).total_cmp(&price(b)));
        best.filter(|best| price(best) < 0.0)
    }
}

/// Choices of a block with their costs.
#[derive(Clone, Debug)]
pub struct Formulation {
    /// Cost of each option, for every variable.
    pub options: Vec<Vec<Cost>>,
    /// Conversions of every pair of options, for pairs of variables.
    pub edges: Vec<([usize; 2], Vec<Wire>)>,
    /// Parameters that have other transports than the usual one, by variable and option.
    pub transports: BTreeMap<usize, Vec<Vec<TransportOptions>>>,
    /// Meaning of every variable.
    pub variables: Arc<[Variable]>,
    /// Variable of the tensor that enters the block.
    pub entry: Option<usize>,
    /// Variable of the tensor that leaves the block.
    pub exit: Option<usize>,
}

impl Formulation {
    /// Returns the problem under weights, with the transport of every gradient that is best at this price per
    /// byte.
    pub fn problem(&self, weights: &Weights, seconds_per_byte: f64) -> Problem {
        let option = |variable: usize, option: usize, cost: &Cost| {
            let saved = self.best(variable, option, weights, seconds_per_byte);
            saved.fold(weights.price(cost), |sum, way| sum + weights.price(&way.change))
        };
        let options = |(variable, costs): (usize, &Vec<Cost>)| {
            let costs = costs.iter().enumerate();
            costs.map(|(place, cost)| option(variable, place, cost)).collect()
        };
        let wire = |wire: &Wire| Price::seconds(weights.wire_s(wire));
        let edge = |(ends, wires): &([usize; 2], Vec<Wire>)| Edge {
            ends: *ends,
            prices: wires.iter().map(wire).collect(),
        };
        Problem {
            options: self.options.iter().enumerate().map(options).collect(),
            edges: self.edges.iter().map(edge).collect(),
        }
    }

    /// Returns the problem under weights, with all variables except those at its ends eliminated in this
    /// order.
    pub fn eliminated(
        &self,
        order: &[usize],
        weights: &Weights,
        seconds_per_byte: f64,
    ) -> Eliminated {
        let keep: Vec<usize> = [self.entry, self.exit].into_iter().flatten().collect();
        eliminate(&self.problem(weights, seconds_per_byte), order, &keep, seconds_per_byte)
    }

    /// Returns the cost of a choice with the usual transport of every gradient.
    pub fn cost(&self, choices: &[usize]) -> Cost {
        let chosen = self.options.iter().zip(choices).map(|(costs, choice)| costs[*choice]);
        let mut sum: Cost = chosen.sum();
        for (_, wire) in self.wires(choices) {
            sum.forward_wire_s += wire.forward_s;
            sum.backward_wire_s += wire.backward_s;
            sum.overlapped_s += wire.overlapped_s;
        }
        sum
    }

    /// Returns the conversions of a choice, each with the two variables between which it takes place.
    fn wires(&self, choices: &[usize]) -> impl Iterator<Item = ([usize; 2], Wire)> {
        self.edges.iter().map(move |(ends, wires)| {
            let [first, second] = ends.map(|variable| choices[variable]);
            (*ends, wires[first * self.options[ends[1]].len() + second])
        })
    }

    /// Returns the cost of one variable of a choice, and its conversions.
    pub fn part(&self, variable: usize, choices: &[usize]) -> (Cost, Wire) {
        let mut sum = Wire::default();
        for (_, wire) in self.wires(choices).filter(|(ends, _)| ends.contains(&variable)) {
            sum.forward_s += wire.forward_s;
            sum.backward_s += wire.backward_s;
            sum.overlapped_s += wire.overlapped_s;
        }
        (self.options[variable][choices[variable]], sum)
    }

    /// Returns the change of a choice's cost with the best transport of every gradient.
    pub fn saved(&self, choices: &[usize], weights: &Weights, seconds_per_byte: f64) -> Cost {
        let chosen = self.transports.keys().map(|variable| (*variable, choices[*variable]));
        let best = |(variable, option)| self.best(variable, option, weights, seconds_per_byte);
        chosen.flat_map(best).map(|way| way.change).sum()
    }

    /// Returns the parameters of a choice that have other transports.
    pub fn transport_options<'a>(
        &'a self,
        choices: &'a [usize],
    ) -> impl Iterator<Item = &'a TransportOptions> {
        let variables =
            (0..self.options.len()).filter_map(|at| Some((at, self.transports.get(&at)?)));
        variables.flat_map(|(variable, options)| &options[choices[variable]])
    }

    /// Returns the best transports of an option's parameters, if they are cheaper than the usual ones.
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

    /// Returns the strategies of a choice, by node.
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
