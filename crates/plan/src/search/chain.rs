//! The chain of a model's blocks on one mesh, and the best strategies for all of them.
//!
//! Each class of equal blocks is formulated once. Within a block, all variables except the tensors at
//! its two ends are eliminated. Along the chain, dynamic programming finds the best layouts of these
//! tensors from the first block to the last. So the time of the search grows with the number of classes,
//! and hardly with the number of blocks.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use thinwire_model::{Cut, NodeId, Sides, Strategy, TensorId};

use super::block::{Allowed, BlockPricing, layouts_of};
use super::prepare::User;
use super::{Class, Given, Prepared, Rule};
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
    /// Formulations, by class.
    formulations: Vec<Formulation>,
    /// Orders of elimination, by class.
    orders: Vec<Arc<[usize]>>,
}

/// One option for every variable of every block.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Distinct assignments of blocks: a class and the options of its variables.
    pub variants: Vec<(usize, Vec<usize>)>,
    /// Variant of every block.
    pub of_block: Vec<usize>,
    /// Codec error of gradients at the prices of this choice, in elements.
    pub codec_error: f64,
}

/// A choice with the chain on which it is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen<'a> {
    pub chain: &'a Chain<'a>,
    pub choice: &'a Choice,
}

impl<'a> Chosen<'a> {
    /// Returns the parameters of a block that have other transports than the usual one.
    pub fn transport_options(self, block: usize) -> impl Iterator<Item = &'a TransportOptions> {
        self.chain.transport_options(self.choice, block)
    }
}

/// One node under a choice.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// All strategies that the node may have.
    pub strategies: &'a [Strategy],
    /// Index of the chosen strategy.
    pub chosen: usize,
    /// Cost of the node with its parameters.
    pub cost: Cost,
    /// Conversions of its operands and results.
    pub wire: Wire,
}

impl<'a> Chain<'a> {
    /// Returns the chain of a model on a mesh, under a rule.
    ///
    /// # Errors
    /// Returns an error if blocks are joined by more than one tensor.
    pub fn new(prepared: &'a Prepared, costs: &Costs<'_>, rule: Rule) -> Result<Chain<'a>, Error> {
        Chain::given_by(prepared, costs, rule, &Given::new())
    }

    /// Returns the chain of a model with given strategies for some nodes.
    ///
    /// # Errors
    /// Returns the errors of [`Chain::new`].
    pub fn given_by(
        prepared: &'a Prepared,
        costs: &Costs<'_>,
        rule: Rule,
        given: &Given,
    ) -> Result<Chain<'a>, Error> {
        let allowed = Allowed { rule, given };
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
            // The cache knows no outlines of given strategies.
            let outline = match allowed.given.is_empty() {
                true => cache.outlines.of((allowed.rule, place), outline)?,
                false => Arc::new(outline()?),
            };
            formulations.push(outline.priced(&prepared.graph, &pricing));
            orders.push(Arc::clone(outline.order()));
        }
        Ok(Chain { prepared, rule, given: given.clone(), formulations, orders })
    }

    /// Returns the chain of the same model on other devices; a choice means the same on both.
    ///
    /// # Errors
    /// Returns the errors of [`Chain::new`].
    pub fn on(&self, costs: &Costs<'_>) -> Result<Chain<'a>, Error> {
        Chain::given_by(self.prepared, costs, self.rule, &self.given)
    }

    /// Returns the cheapest choice under weights, at a price per byte. The price of the choice includes the
    /// best transport of every gradient.
    pub fn solve(&self, weights: &Weights, seconds_per_byte: f64) -> (Price, Choice) {
        self.solve_any(std::slice::from_ref(weights), seconds_per_byte)
    }

    /// Returns the cheapest choice if every block may be in any of several modes, where each mode has
    /// its own weights.
    pub fn solve_any(&self, modes: &[Weights], seconds_per_byte: f64) -> (Price, Choice) {
        let blocks: Vec<Vec<Eliminated>> =
            modes.iter().map(|weights| self.eliminated(weights, seconds_per_byte)).collect();
        let ends = self.ends(&blocks);
        let mut known: HashMap<(usize, usize, usize), usize> = HashMap::new();
        let mut variants: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut prices: Vec<(Price, f64)> = Vec::new();
        let mut of_block = Vec::new();
        for (block, pair) in ends.windows(2).enumerate() {
            let class = self.prepared.of_block[block];
            let variant = *known.entry((class, pair[0], pair[1])).or_insert_with(|| {
                let one = &self.formulations[class];
                let entry = one.entry.map(|_| pair[0]);
                let kept: Vec<usize> = entry.into_iter().chain(one.exit.map(|_| pair[1])).collect();
                let width = one.exit.map_or(1, |exit| one.options[exit].len());
                let mode = cheapest(&blocks, class, pair[0] * width + pair[1]);
                let options = blocks[mode][class].choices(&kept);
                let saved = one.saved(&options, &modes[mode], seconds_per_byte);
                let cost: Cost = [one.cost(&options), saved].into_iter().sum();
                prices.push((modes[mode].price(&cost), cost.codec_error));
                variants.push((class, options));
                variants.len() - 1
            });
            of_block.push(variant);
        }
        let price = of_block.iter().map(|variant| prices[*variant].0).sum();
        let codec_error = of_block.iter().map(|variant| prices[*variant].1).sum();
        (price, Choice { variants, of_block, codec_error })
    }

    /// Returns every class with all but its ends eliminated.
    fn eliminated(&self, weights: &Weights, seconds_per_byte: f64) -> Vec<Eliminated> {
        let all = self.formulations.iter().zip(&self.orders);
        all.map(|(one, order)| one.eliminated(order, weights, seconds_per_byte)).collect()
    }

    /// Returns the parameters of a block that have other transports than the usual one.
    pub fn transport_options<'b>(
        &'b self,
        choice: &'b Choice,
        block: usize,
    ) -> impl Iterator<Item = &'b TransportOptions> {
        let (class, options) = &choice.variants[choice.of_block[block]];
        self.formulations[*class].transport_options(options)
    }

    /// Returns whether the first mesh dimension cuts the batch axis of every node that has one, and no
    /// other axis.
    pub fn cuts_batches(&self, choice: &Choice) -> bool {
        let variants = 0..choice.variants.len();
        variants.flat_map(|variant| self.strategies(choice, variant)).all(|(id, strategy)| {
            let declaration = self.prepared.graph.declaration(&self.prepared.graph.nodes[id]);
            match strategy.0.first() {
                Some(Cut::Axis(axis)) => declaration.axes[*axis].name == 'b',
                Some(Cut::Whole) => declaration.axis('b').is_none(),
                _ => false,
            }
        })
    }

    /// Returns the elements of all parameters.
    pub fn parameters(&self) -> f64 {
        self.prepared.parameters
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.prepared.of_block.len()
    }

    /// Returns the strategies of a choice, by node of the first block of each class.
    pub fn given(&self, choice: &Choice) -> Given {
        let variants = 0..choice.variants.len();
        let mut given = Given::new();
        for (id, strategy) in variants.flat_map(|variant| self.strategies(choice, variant)) {
            given.entry(id).or_insert_with(|| strategy.clone());
        }
        given
    }

    /// Returns the cost of every block with the usual transport of every gradient.
    pub fn costs(&self, choice: &Choice) -> Vec<Cost> {
        let cost = |(class, options): &(usize, Vec<usize>)| self.formulations[*class].cost(options);
        let variants: Vec<Cost> = choice.variants.iter().map(cost).collect();
        choice.of_block.iter().map(|variant| variants[*variant]).collect()
    }

    /// Returns the shape and layout in which a block passes its tensor to the next one.
    pub fn exit(&self, choice: &Choice, block: usize) -> Option<(&[usize], &Sides)> {
        let (class, options) = &choice.variants[choice.of_block[block]];
        let one = &self.formulations[*class];
        let variable = one.exit?;
        let Variable::Tensor(id, sides) = &one.variables[variable] else { return None };
        Some((&self.prepared.graph.tensors[*id].shape, &sides[options[variable]]))
    }

    /// Returns the users of each parameter that several blocks read.
    pub(super) fn shared(&self) -> &[Vec<User>] {
        &self.prepared.shared
    }

    /// Returns the shape of a user's parameter, its tensor in the first block of the class, and its
    /// layout there.
    pub(super) fn parameter(
        &self,
        choice: &Choice,
        user: &User,
    ) -> Option<(&[usize], TensorId, Sides)> {
        let (class, options) = &choice.variants[choice.of_block[user.block]];
        let mut strategies = self.formulations[*class].strategies(options);
        // It is there: a choice has a strategy for every node of a class.
        let (_, strategy) = strategies.find(|(id, _)| *id == user.node)?;
        let tensor = self.prepared.graph.nodes[user.node].inputs[user.input];
        let work = &self.prepared.classes[*class].work[&user.node];
        let sides = work.declaration.input_sides(user.input, strategy);
        Some((&self.prepared.graph.tensors[tensor].shape, tensor, sides))
    }

    /// Returns the strategy of every node of a variant, in order.
    pub fn strategies<'b>(
        &'b self,
        choice: &'b Choice,
        variant: usize,
    ) -> Vec<(NodeId, &'b Strategy)> {
        let (class, options) = &choice.variants[variant];
        self.formulations[*class].strategies(options).collect()
    }

    /// Returns a node of a variant: its strategies, its cost and its conversions.
    pub fn part(&self, choice: &Choice, variant: usize, node: NodeId) -> Option<Part<'_>> {
        let (class, options) = &choice.variants[variant];
        let one = &self.formulations[*class];
        let is_it = |variable: &Variable| matches!(variable, Variable::Node(id, _) if *id == node);
        let variable = one.variables.iter().position(is_it)?;
        let Variable::Node(_, strategies) = &one.variables[variable] else { return None };
        let (cost, wire) = one.part(variable, options);
        Some(Part { strategies, chosen: options[variable], cost, wire })
    }

    /// Returns the option of the tensor before the first block, between all blocks, and after the
    /// last one.
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

/// Returns the mode in which a class is cheapest at a place of its table.
fn cheapest(modes: &[Vec<Eliminated>], class: usize, place: usize) -> usize {
    let cost = |mode: &usize| modes[*mode][class].costs[place];
    (0..modes.len()).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0)
}

/// Returns the block of a class between tensors in any of these layouts, which `layouts` has by shape.
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
