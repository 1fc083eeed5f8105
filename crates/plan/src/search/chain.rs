//! The chain of a model's blocks on one mesh, and the best strategies for all of them.
//!
//! Each class of blocks is formulated once. Within a block all but the tensors at its two ends is
//! eliminated; along the chain, the best layouts of those tensors follow from the first block to
//! the last. So time follows the number of classes, not of blocks.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use thinwire_model::{Cut, NodeId, Sides, Strategy, TensorId};

use super::block::{Allowed, BlockPricing, Given, layouts_of};
use super::prepare::{Class, Prepared, User};
use super::rule::Rule;
use crate::Error;
use crate::cost::{Cost, Costs};
use crate::stage::{
    Block, Eliminated, Formulation, Outline, Price, TransportOptions, Variable, Weights, Wire,
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
    orders: Vec<Arc<[usize]>>,
}

/// One option for every variable of every block.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The distinct ways in which blocks are done: their class and the options of its variables.
    pub ways: Vec<(usize, Vec<usize>)>,
    /// For every block, which way.
    pub of_block: Vec<usize>,
    /// What encoding gradients loses at the prices for which this was chosen.
    pub codec_error: f64,
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
        Chain::build(prepared, costs, Allowed { rule, given })
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
    ) -> Result<Chain<'a>, Error> {
        allowed.check(prepared, &costs.mesh)?;
        let cache = prepared.cache.on(costs);
        let unlinked = costs.products.then(|| costs.unlinked());
        let unlinked = unlinked.as_ref();
        let layouts = OnceCell::new();
        let (mut formulations, mut orders) = (Vec::new(), Vec::new());
        for (place, class) in prepared.classes.iter().enumerate() {
            let work = &class.work;
            let pricing = BlockPricing { costs, unlinked, work, allowed: &allowed, cache: &cache };
            let outline = || {
                let layouts = layouts.get_or_init(|| layouts_of(prepared, costs, &allowed));
                Outline::new(&block(prepared, class, layouts), &costs.mesh, &pricing)
            };
            let outline = match allowed.given.is_empty() {
                true => cache.outlines.of((allowed.rule, place), outline)?,
                false => Arc::new(outline()?),
            };
            formulations.push(outline.priced(&prepared.graph, &pricing));
            orders.push(Arc::clone(outline.order()));
        }
        let (rule, given) = (allowed.rule, allowed.given.clone());
        Ok(Chain { prepared, rule, given, formulations, orders })
    }

    /// The cheapest choice where costs count so much, at a price per byte; its price has gradients
    /// travel, and parameters divided, as is best.
    pub fn solve(&self, weights: &Weights, seconds_per_byte: f64) -> (Price, Choice) {
        self.solve_any(std::slice::from_ref(weights), seconds_per_byte)
    }

    /// The same where every block may be done in several modes, in each of which costs count
    /// otherwise.
    pub fn solve_any(&self, modes: &[Weights], seconds_per_byte: f64) -> (Price, Choice) {
        let blocks: Vec<Vec<Eliminated>> =
            modes.iter().map(|weights| self.eliminated(weights, seconds_per_byte)).collect();
        let ends = self.ends(&blocks);
        let mut known: HashMap<(usize, usize, usize), usize> = HashMap::new();
        let mut ways: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut prices: Vec<(Price, f64)> = Vec::new();
        let mut of_block = Vec::new();
        for (block, pair) in ends.windows(2).enumerate() {
            let class = self.prepared.of_block[block];
            let way = *known.entry((class, pair[0], pair[1])).or_insert_with(|| {
                let one = &self.formulations[class];
                let entry = one.entry.map(|_| pair[0]);
                let kept: Vec<usize> = entry.into_iter().chain(one.exit.map(|_| pair[1])).collect();
                let width = one.exit.map_or(1, |exit| one.options[exit].len());
                let mode = cheapest(&blocks, class, pair[0] * width + pair[1]);
                let options = blocks[mode][class].choices(&kept);
                let saved = one.saved(&options, &modes[mode], seconds_per_byte);
                let cost: Cost = [one.cost(&options), saved].into_iter().sum();
                prices.push((modes[mode].price(&cost), cost.codec_error));
                ways.push((class, options));
                ways.len() - 1
            });
            of_block.push(way);
        }
        let price = of_block.iter().map(|way| prices[*way].0).sum();
        let codec_error = of_block.iter().map(|way| prices[*way].1).sum();
        (price, Choice { ways, of_block, codec_error })
    }

    /// Every class with all but its ends eliminated.
    fn eliminated(&self, weights: &Weights, seconds_per_byte: f64) -> Vec<Eliminated> {
        let all = self.formulations.iter().zip(&self.orders);
        all.map(|(one, order)| one.eliminated(order, weights, seconds_per_byte)).collect()
    }

    /// The parameters of a block that may be divided, or their gradients travel, otherwise.
    pub fn transport_options<'b>(
        &'b self,
        choice: &'b Choice,
        block: usize,
    ) -> impl Iterator<Item = &'b TransportOptions> {
        let (class, options) = &choice.ways[choice.of_block[block]];
        self.formulations[*class].transport_options(options)
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

    /// What every block costs where nothing is done otherwise than usual.
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

    /// Of parameters that several blocks read, who reads them.
    pub(super) fn shared(&self) -> &[Vec<User>] {
        &self.prepared.shared
    }

    /// The shape of a parameter, what the first block of the class calls it, and how a user has it.
    pub(super) fn parameter(
        &self,
        choice: &Choice,
        user: &User,
    ) -> Option<(&[usize], TensorId, Sides)> {
        let (class, options) = &choice.ways[choice.of_block[user.block]];
        let mut strategies = self.formulations[*class].strategies(options);
        let (_, strategy) = strategies.find(|(id, _)| *id == user.node)?;
        let tensor = self.prepared.graph.nodes[user.node].inputs[user.input];
        let work = &self.prepared.classes[*class].work[&user.node];
        let sides = work.declaration.input_sides(user.input, strategy);
        Some((&self.prepared.graph.tensors[tensor].shape, tensor, sides))
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
    fn ends(&self, modes: &[Vec<Eliminated>]) -> Vec<usize> {
        let least = |class: usize| -> Vec<f64> {
            let mut costs = modes[0][class].costs.clone();
            for mode in &modes[1..] {
                let pairs = costs.iter_mut().zip(&mode[class].costs);
                pairs.for_each(|(least, cost)| *least = least.min(*cost));
            }
            costs
        };
        let blocks: Vec<Vec<f64>> = (0..self.formulations.len()).map(least).collect();
        let mut best = vec![0.0];
        let mut from: Vec<Vec<usize>> = Vec::new();
        for class in &self.prepared.of_block {
            let costs = &blocks[*class];
            let width = costs.len() / best.len();
            let (mut sums, mut entries) = (vec![f64::INFINITY; width], vec![0; width]);
            for (entry, (row, before)) in costs.chunks_exact(width).zip(&best).enumerate() {
                for ((sum, from), cost) in sums.iter_mut().zip(&mut entries).zip(row) {
                    let via = before + cost;
                    if via < *sum {
                        (*sum, *from) = (via, entry);
                    }
                }
            }
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

/// The mode in which a class is cheapest at a place of its table.
fn cheapest(modes: &[Vec<Eliminated>], class: usize, place: usize) -> usize {
    let cost = |mode: &usize| modes[*mode][class].costs[place];
    (0..modes.len()).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0)
}

/// The block of a class between tensors that may lie in these layouts, which are known by their
/// shapes.
fn block<'a>(
    prepared: &'a Prepared,
    class: &Class,
    layouts: &HashMap<Vec<usize>, Vec<Sides>>,
) -> Block<'a> {
    let graph = &prepared.graph;
    let with =
        |tensor: Option<TensorId>| tensor.map(|id| (id, layouts[&graph.tensors[id].shape].clone()));
    let (entry, exit) = (with(class.entry), with(class.exit));
    Block { graph, nodes: class.nodes.clone(), entry, exit }
}
