//! The chain of a model's blocks on one mesh, and the best strategies for all of them.
//!
//! Each class of blocks is formulated once. Within a block all but the tensors at its two ends is
//! eliminated; along the chain, the best layouts of those tensors follow from the first block to
//! the last. So time follows the number of classes, not of blocks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use thinwire_model::{
    Declaration, Layout, NodeId, Placement, Reduction, Sides, Strategy, TensorId,
};

use super::prepare::{Class, Prepared};
use super::rule::Rule;
use crate::Error;
use crate::cost::{Carriage, Cost, Costs, Work};
use crate::stage::{
    Block, Carried, Eliminated, Formulation, Price, Pricing, Variable, Weights, eliminate,
};

/// All blocks on one mesh.
#[derive(Debug)]
pub struct Chain<'a> {
    prepared: &'a Prepared,
    /// By class.
    formulations: Vec<Formulation>,
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
        let allowed = Allowed { rule, given };
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
                BlockPricing { costs, work: &class.work, allowed: &allowed, known: &known };
            Formulation::new(&block, &costs.mesh, &pricing)
        };
        let formulations = prepared.classes.iter().map(formulate).collect::<Result<_, _>>()?;
        Ok(Chain { prepared, formulations })
    }

    /// The cheapest choice where costs count so much, at a price per byte; its price has gradients
    /// travel as is best.
    pub fn solve(&self, weights: &Weights, seconds_per_byte: f64) -> (Price, Choice) {
        let blocks: Vec<Eliminated> = self
            .formulations
            .iter()
            .map(|one| {
                let keep: Vec<usize> = [one.entry, one.exit].into_iter().flatten().collect();
                eliminate(&one.problem(weights, seconds_per_byte), &keep, seconds_per_byte)
            })
            .collect();
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

/// For every shape of a tensor between blocks, all layouts that a block gives it or wants.
fn layouts(
    prepared: &Prepared,
    costs: &Costs<'_>,
    allowed: &Allowed<'_>,
) -> HashMap<Vec<usize>, Vec<Sides>> {
    let mut layouts: HashMap<Vec<usize>, Vec<Sides>> = HashMap::new();
    for class in &prepared.classes {
        for id in class.nodes.clone() {
            let node = &prepared.graph.nodes[id];
            let declaration = &class.work[&id].declaration;
            let read = node.inputs.iter().enumerate();
            let read = read.filter(|(_, tensor)| class.entry == Some(**tensor));
            let written = node.outputs.iter().enumerate();
            let written = written.filter(|(_, tensor)| class.exit == Some(**tensor));
            let ends = read.map(|(at, tensor)| (at, tensor, true));
            for (at, tensor, input) in ends.chain(written.map(|(at, tensor)| (at, tensor, false))) {
                let known =
                    layouts.entry(prepared.graph.tensors[*tensor].shape.clone()).or_default();
                for strategy in allowed.strategies(id, &class.work[&id], &costs.mesh) {
                    let sides = match input {
                        true => declaration.input_sides(at, &strategy),
                        false => declaration.output_sides(at, &strategy),
                    };
                    if !known.contains(&sides) {
                        known.push(sides);
                    }
                }
            }
        }
    }
    layouts
}

/// Strategies that are given, by the first node of its class.
pub type Given = HashMap<NodeId, Strategy>;

/// What nodes may do.
struct Allowed<'a> {
    rule: Rule,
    given: &'a Given,
}

impl Allowed<'_> {
    fn strategies(&self, id: NodeId, work: &Work, mesh: &[usize]) -> Vec<Strategy> {
        match self.given.get(&id) {
            Some(strategy) => vec![strategy.clone()],
            None if work.pinned.is_empty() => {
                self.rule.strategies(&work.declaration, work.kind, mesh)
            }
            None => self.rule.pinned(&work.declaration, work.kind, mesh, &work.pinned),
        }
    }

    /// Whether there is a strategy for every node that is pinned.
    fn check(&self, prepared: &Prepared, mesh: &[usize]) -> Result<(), Error> {
        let works = prepared.classes.iter().flat_map(|class| &class.work);
        for (id, work) in works.filter(|(_, work)| !work.pinned.is_empty()) {
            if self.strategies(*id, work, mesh).is_empty() {
                let name = &prepared.graph.nodes[*id].name;
                let found = format!("'{name}' cannot be cut on mesh {mesh:?} as it is pinned");
                return Err(Error::impossible(found));
            }
        }
        Ok(())
    }
}

/// Prices of one block's nodes.
struct BlockPricing<'a> {
    costs: &'a Costs<'a>,
    work: &'a HashMap<NodeId, Work>,
    allowed: &'a Allowed<'a>,
    known: &'a RefCell<Known>,
}

/// Seconds of conversions, by numbers that stand for a shape and for all layouts on both sides.
type Known = HashMap<Vec<u64>, Rc<[f64]>>;

/// A number that no other layout on the same mesh has; none for a layout too large for it.
fn code(layout: &Layout) -> Option<u64> {
    let digit = |placement: &Placement| match placement {
        Placement::Replicated => Some(0),
        Placement::Partial(Reduction::Sum) => Some(1),
        Placement::Partial(Reduction::Max) => Some(2),
        Placement::Partial(Reduction::LogSumExp) => Some(3),
        Placement::Sharded(dim) => (*dim < 12).then_some(4 + *dim as u64),
    };
    let short = layout.0.len() <= 8;
    let digits = short.then_some(&layout.0)?.iter();
    digits.map(digit).try_fold(0, |code, digit| Some(code << 4 | digit?))
}

impl Pricing for BlockPricing<'_> {
    fn node(&self, id: NodeId, _: &Declaration, strategy: &Strategy) -> Cost {
        self.costs.node(&self.work[&id], strategy)
    }

    fn strategies(&self, id: NodeId, _: &Declaration, mesh: &[usize]) -> Vec<Strategy> {
        self.allowed.strategies(id, &self.work[&id], mesh)
    }

    fn parameter(&self, shape: &[usize], sides: &Sides) -> Cost {
        self.costs.parameter(shape, sides)
    }

    fn carriages(&self, shape: &[usize], sides: &Sides) -> Vec<Carriage> {
        self.costs.carriages(shape, sides)
    }

    fn conversion_s(&self, shape: &[usize], from: &Layout, to: &Layout) -> f64 {
        self.costs.conversion_s(shape, from, to)
    }

    fn conversions_s(&self, shape: &[usize], from: &[&Layout], to: &[&Layout]) -> Rc<[f64]> {
        let convert = || -> Rc<[f64]> {
            let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
            let seconds = |(from, to): (&Layout, &Layout)| match from == to {
                true => 0.0,
                false => self.conversion_s(shape, from, to),
            };
            pairs.map(seconds).collect()
        };
        let lengths = shape.iter().map(|length| Some(*length as u64));
        let codes = lengths.chain([Some(u64::MAX)]).chain(from.iter().map(|one| code(one)));
        let codes = codes.chain([Some(u64::MAX)]).chain(to.iter().map(|one| code(one)));
        match codes.collect::<Option<Vec<u64>>>() {
            Some(key) => self.known.borrow_mut().entry(key).or_insert_with(convert).clone(),
            None => convert(),
        }
    }

    fn entry(&self, shape: &[usize], sides: &Sides) -> Cost {
        Cost { entry_bytes: self.costs.bytes(shape, &sides.value), ..Cost::ZERO }
    }
}
