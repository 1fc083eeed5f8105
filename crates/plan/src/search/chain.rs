//! The chain of a model's blocks on one mesh, and the best strategies for all of them.
//!
//! Each class of blocks is formulated once. Within a block all but the tensors at its two ends is
//! eliminated; along the chain, the best layouts of those tensors follow from the first block to
//! the last. So time follows the number of classes, not of blocks.

use std::cell::RefCell;
use std::collections::HashMap;

use thinwire_model::{Cut, NodeId, Sides, Strategy, TensorId};

use super::block::{Allowed, BlockPricing, Given, Unit, layouts};
use super::prepare::{Class, Prepared};
use super::rule::Rule;
use crate::Error;
use crate::cost::{Cost, Costs};
use crate::stage::{
    Block, Carried, Eliminated, Formulation, Price, Variable, Weights, Wire, eliminate_in, order,
};

/// All blocks on one mesh.
#[derive(Debug)]
pub struct Chain<'a> {
    prepared: &'a Prepared,
    rule: Rule,
    given: Given,
    /// By class.
    formulations: Vec<Formulation>,
    /// The order in which each is eliminated but for its ends.
    orders: Vec<Vec<usize>>,
}

/// One option for every variable of every block.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The distinct ways in which blocks are done: their class and the options of its variables.
    pub ways: Vec<(usize, Vec<usize>)>,
    /// For every block, which way.
    pub of_block: Vec<usize>,
    /// What encoding gradients loses at the prices for which this was chosen.
    pub loss: f64,
}

/// One node under a choice.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// All strategies that it may have.
    pub strategies: &'a [Strategy],
    /// Which of them it has.
    pub chosen: usize,
    /// What it costs, with its parameters.
    pub cost: Cost,
    /// What bringing its operands to it and from it takes.
    pub wire: Wire,
}

impl<'a> Chain<'a> {
    /// The chain of a model on a mesh, under a rule.
    ///
    /// # Errors
    /// If blocks are joined by more than one tensor.
    pub fn new(prepared: &'a Prepared, costs: &Costs<'_>, rule: Rule) -> Result<Chain<'a>, Error> {
        Chain::given_by(prepared, costs, rule, &Given::new())
    }

    /// The same, where some nodes have no choice.
    ///
    /// # Errors
    /// As [`Chain::new`].
    pub fn given_by(
        prepared: &'a Prepared,
        costs: &Costs<'_>,
        rule: Rule,
        given: &Given,
    ) -> Result<Chain<'a>, Error> {
        Chain::build(prepared, costs, Allowed { rule, given }, Unit::Seconds)
    }

    /// The same with bytes that devices send in place of seconds, over one level of the cluster or
    /// over all of them, and nothing else: options are in
    /// the order of [`Chain::new`], so that its choices can be counted.
    ///
    /// # Errors
    /// As [`Chain::new`].
    pub fn sent(
        prepared: &'a Prepared,
        costs: &Costs<'_>,
        rule: Rule,
        level: Option<usize>,
    ) -> Result<Chain<'a>, Error> {
        let allowed = Allowed { rule, given: &Given::new() };
        Chain::build(prepared, costs, allowed, Unit::Bytes(level))
    }

    /// The same on other devices; choices mean the same.
    ///
    /// # Errors
    /// As [`Chain::new`].
    pub fn on(&self, costs: &Costs<'_>) -> Result<Chain<'a>, Error> {
        Chain::given_by(self.prepared, costs, self.rule, &self.given)
    }

    fn build(
        prepared: &'a Prepared,
        costs: &Costs<'_>,
        allowed: Allowed<'_>,
        unit: Unit,
    ) -> Result<Chain<'a>, Error> {
        allowed.check(prepared, &costs.mesh)?;
        let layouts = layouts(prepared, costs, &allowed);
        let known = RefCell::default();
        let formulate = |class: &Class| {
            let with = |tensor: Option<TensorId>| {
                tensor.map(|id| (id, layouts[&prepared.graph.tensors[id].shape].clone()))
            };
            let (entry, exit) = (with(class.entry), with(class.exit));
            let block = Block { graph: &prepared.graph, nodes: class.nodes.clone(), entry, exit };
            let pricing =
                BlockPricing { costs, work: &class.work, allowed: &allowed, known: &known, unit };
            Formulation::new(&block, &costs.mesh, &pricing)
        };
        let formulations: Vec<_> =
            prepared.classes.iter().map(formulate).collect::<Result<_, _>>()?;
        let (rule, given) = (allowed.rule, allowed.given.clone());
        let order = |one: &Formulation| order(&one.problem(&Weights::ONCE, 0.0), &ends_of(one));
        let orders = formulations.iter().map(order).collect();
        Ok(Chain { prepared, rule, given, formulations, orders })
    }

    /// The cheapest choice where costs count so much, at a price per byte; its price has gradients
    /// travel as is best.
    pub fn solve(&self, weights: &Weights, seconds_per_byte: f64) -> (Price, Choice) {
        let eliminated = |(one, order): (&Formulation, &Vec<usize>)| {
            let problem = one.problem(weights, seconds_per_byte);
            eliminate_in(order, &problem, &ends_of(one), seconds_per_byte)
        };
        let blocks: Vec<Eliminated> =
            self.formulations.iter().zip(&self.orders).map(eliminated).collect();
        let ends = self.ends(&blocks);
        let mut known: HashMap<(usize, usize, usize), usize> = HashMap::new();
        let mut ways: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut of_block = Vec::new();
        for (block, pair) in ends.windows(2).enumerate() {
            let class = self.prepared.of_block[block];
            let way = *known.entry((class, pair[0], pair[1])).or_insert_with(|| {
                let one = &self.formulations[class];
                let entry = one.entry.map(|_| pair[0]);
                let kept: Vec<usize> = entry.into_iter().chain(one.exit.map(|_| pair[1])).collect();
                ways.push((class, blocks[class].choices(&kept)));
                ways.len() - 1
            });
            of_block.push(way);
        }
        let mut choice = Choice { ways, of_block, loss: 0.0 };
        let saved = |(class, options): &(usize, Vec<usize>)| {
            self.formulations[*class].saved(options, weights, seconds_per_byte)
        };
        let saved: Vec<Cost> = choice.ways.iter().map(saved).collect();
        let costs = self.costs(&choice).into_iter().zip(&choice.of_block);
        let total: Cost = costs.flat_map(|(cost, way)| [cost, saved[*way]]).sum();
        choice.loss = total.loss;
        (weights.price(&total), choice)
    }

    /// The parameters of a block whose gradients may be encoded.
    pub fn carried<'b>(
        &'b self,
        choice: &'b Choice,
        block: usize,
    ) -> impl Iterator<Item = &'b Carried> {
        let (class, options) = &choice.ways[choice.of_block[block]];
        self.formulations[*class].carried(options)
    }

    /// Whether the first dimension of the mesh cuts batches, wherever there is one, and nothing else.
    pub fn cuts_batches(&self, choice: &Choice) -> bool {
        let ways = 0..choice.ways.len();
        ways.flat_map(|way| self.strategies(choice, way)).all(|(id, strategy)| {
            let declaration = self.prepared.graph.declaration(&self.prepared.graph.nodes[id]);
            match strategy.0.first() {
                Some(Cut::Axis(axis)) => declaration.axes[*axis].name == 'b',
                Some(Cut::Whole) => declaration.axis('b').is_none(),
                _ => false,
            }
        })
    }

    /// Elements of all parameters.
    pub fn parameters(&self) -> f64 {
        self.prepared.parameters
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.prepared.of_block.len()
    }

    /// The strategies of a choice, for the nodes of the first block of each class.
    pub fn given(&self, choice: &Choice) -> Given {
        let ways = 0..choice.ways.len();
        let mut given = Given::new();
        for (id, strategy) in ways.flat_map(|way| self.strategies(choice, way)) {
            given.entry(id).or_insert_with(|| strategy.clone());
        }
        given
    }

    /// What every block costs where gradients travel as they are.
    pub fn costs(&self, choice: &Choice) -> Vec<Cost> {
        let cost = |(class, options): &(usize, Vec<usize>)| self.formulations[*class].cost(options);
        let ways: Vec<Cost> = choice.ways.iter().map(cost).collect();
        choice.of_block.iter().map(|way| ways[*way]).collect()
    }

    /// The layout in which a block gives its tensor to the next one, and its shape.
    pub fn exit(&self, choice: &Choice, block: usize) -> Option<(&[usize], &Sides)> {
        let (class, options) = &choice.ways[choice.of_block[block]];
        let one = &self.formulations[*class];
        let variable = one.exit?;
        let Variable::Tensor(id, sides) = &one.variables[variable] else { return None };
        Some((&self.prepared.graph.tensors[*id].shape, &sides[options[variable]]))
    }

    /// The strategy of every node of a way, in order.
    pub fn strategies<'b>(&'b self, choice: &'b Choice, way: usize) -> Vec<(NodeId, &'b Strategy)> {
        let (class, options) = &choice.ways[way];
        self.formulations[*class].strategies(options).collect()
    }

    /// A node of a way: its strategy, what it costs itself, and what travels to and from it.
    pub fn part(&self, choice: &Choice, way: usize, node: NodeId) -> Option<Part<'_>> {
        let (class, options) = &choice.ways[way];
        let one = &self.formulations[*class];
        let is_it = |variable: &Variable| matches!(variable, Variable::Node(id, _) if *id == node);
        let variable = one.variables.iter().position(is_it)?;
        let Variable::Node(_, strategies) = &one.variables[variable] else { return None };
        let (cost, wire) = one.part(variable, options);
        Some(Part { strategies, chosen: options[variable], cost, wire })
    }

    /// For the tensor before the first block, between all, and after the last one, which option
    /// it has.
    fn ends(&self, blocks: &[Eliminated]) -> Vec<usize> {
        let mut best = vec![0.0];
        let mut from: Vec<Vec<usize>> = Vec::new();
        for class in &self.prepared.of_block {
            let costs = &blocks[*class].costs;
            let width = costs.len() / best.len();
            let reach = |exit: usize| {
                let via = |entry: usize| (best[entry] + costs[entry * width + exit], entry);
                let all = (0..best.len()).map(via);
                all.min_by(|a, b| a.0.total_cmp(&b.0)).expect("a block has an entry")
            };
            let (sums, entries) = (0..width).map(reach).unzip();
            best = sums;
            from.push(entries);
        }
        let last = (0..best.len()).min_by(|a, b| best[*a].total_cmp(&best[*b]));
        let mut ends = vec![last.expect("a chain has an end")];
        for entries in from.iter().rev() {
            ends.push(entries[ends[ends.len() - 1]]);
        }
        ends.reverse();
        ends
    }
}

/// The variables at the ends of a block.
fn ends_of(one: &Formulation) -> Vec<usize> {
    [one.entry, one.exit].into_iter().flatten().collect()
}
