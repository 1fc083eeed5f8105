//! What a plan sends of every tensor in a step, beside the least that any way to bring it there sends.
//!
//! Where a tensor is made and where it is read is the plan's; how it gets there is what is measured.
//! A gradient of a parameter that p ranks share is summed once a step and is then known to all of
//! them: 2 (p−1)/p of its elements, however often it is exchanged. A stage's message is the tensor
//! itself, once. Bytes are those that travel, encoded where the plan encodes, without headers; the
//! least is of elements as they are.
//!
//! Laws: where nothing is encoded, no tensor sends less than its bound; all together send what the
//! plan's programs send.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use thinwire_model::{Layout, NodeId, Role, Sides, TensorId};

use super::least::relayout;
use super::parameter::Parameter;
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::{Costs, Sharding};
use crate::search::{Chain, Class, Found, Outcome, Planner, Prepared, costs};
use crate::stage::Variable;

/// What a plan sends of all tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// Those of which anything is sent, the most first.
    pub tensors: Vec<MovedTensor>,
    /// The products of which anything is sent, by their nodes; what they send is in `tensors`.
    pub products: Vec<MovedTensor>,
    /// Bytes that a device sends in a step, mean over those of all stages.
    pub sent_bytes: f64,
    /// The least that it could.
    pub least_bytes: f64,
}

/// What a plan sends of one tensor, and of those that stand at its place in equal blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovedTensor {
    /// Its name in the first of the blocks.
    pub name: String,
    /// What it is.
    pub kind: MovedKind,
    /// How many blocks are meant.
    pub blocks: usize,
    /// The last of them, if there are several.
    pub last: Option<String>,
    /// Bytes that a device sends in a step for all these blocks, mean over those of all stages.
    pub sent_bytes: f64,
    /// The least that it could.
    pub least_bytes: f64,
    /// The blocks that it is of, each with its own tensor there.
    #[serde(skip)]
    pub(super) of: Vec<(usize, TensorId)>,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MovedKind {
    /// An activation and its gradient, within a stage.
    Activation,
    /// A parameter and its gradient.
    Parameter,
    /// An activation and its gradient, between stages.
    Message,
    /// The operands and the result of a product, with their gradients.
    Product,
}

impl MovedTensor {
    /// How many times the least is sent; none where nothing needs to be.
    pub fn ratio(&self) -> Option<f64> {
        (self.least_bytes > 0.0).then(|| self.sent_bytes / self.least_bytes)
    }
}

/// What a plan sends of every tensor.
///
/// # Errors
/// If the planner has not made this plan.
pub fn moved(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<Moved, Error> {
    let outcome = &found.best;
    let candidate = &outcome.candidate;
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(candidate).ok_or_else(unplanned)?;
    let costs = costs(cluster, candidate, &planner.settings_of(outcome));
    let chain = Chain::new(prepared, &costs, candidate.rule)?;
    let step = Step::new((prepared, &chain), &costs, outcome);
    let mut tensors: Vec<MovedTensor> =
        (0..outcome.choice.ways.len()).flat_map(|way| step.way(way)).collect();
    tensors.extend(step.parameter_rows());
    tensors.extend(step.messages());
    let mut products: Vec<MovedTensor> =
        (0..outcome.choice.ways.len()).flat_map(|way| step.products_of(way)).collect();
    // Rows are of the devices of their blocks' stages, and of none on the others.
    let stages = candidate.stages as f64;
    for list in [&mut tensors, &mut products] {
        for one in &mut *list {
            one.sent_bytes /= stages;
            one.least_bytes /= stages;
        }
        list.retain(|one| one.sent_bytes > 0.0);
        // Of those that send as much, in the order of the model and of stages.
        list.sort_by(|a, b| b.sent_bytes.total_cmp(&a.sent_bytes));
    }
    let sum = |bytes: fn(&MovedTensor) -> f64| tensors.iter().map(bytes).sum::<f64>();
    let (sent_bytes, least_bytes) = (sum(|one| one.sent_bytes), sum(|one| one.least_bytes));
    Ok(Moved { tensors, products, sent_bytes, least_bytes })
}

/// A plan's step.
pub(super) struct Step<'a> {
    pub prepared: &'a Prepared,
    pub outcome: &'a Outcome,
    pub costs: &'a Costs<'a>,
    pub chain: &'a Chain<'a>,
    pub parameters: Vec<Parameter>,
}

/// The paths of a block's tensors.
pub(super) type Paths = HashMap<TensorId, Path>;

/// Where a tensor of a block is made, where it lies between nodes, and where it is read.
#[derive(Default)]
pub(super) struct Path {
    pub made: Option<Sides>,
    pub between: Option<Sides>,
    pub read: Vec<Sides>,
    /// By which nodes, and as which of their inputs.
    readers: Vec<(NodeId, usize)>,
    /// Whether later blocks read it.
    pub leaves: bool,
}

impl Path {
    /// Where it begins within the block.
    pub fn origin(&self) -> Option<&Sides> {
        self.made.as_ref().or(self.between.as_ref())
    }
}

/// What is sent and the least of it: forward and backward of a micro-batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ways {
    pub sent: [f64; 2],
    pub least: [f64; 2],
}

impl<'a> Step<'a> {
    /// The step of a plan.
    pub fn new(
        (prepared, chain): (&'a Prepared, &'a Chain<'a>),
        costs: &'a Costs<'a>,
        outcome: &'a Outcome,
    ) -> Step<'a> {
        let mut step = Step { prepared, outcome, costs, chain, parameters: Vec::new() };
        step.parameters = step.parameters();
        step
    }

    /// All activations of the blocks that are done in one way.
    fn way(&self, way: usize) -> Vec<MovedTensor> {
        let Outcome { choice, savings, .. } = self.outcome;
        let class = &self.prepared.classes[choice.ways[way].0];
        let blocks = self.blocks(way);
        let rounds = self.outcome.rounds as f64;
        let again = blocks.iter().filter(|block| savings.recomputed[**block]).count() as f64;
        let redone = self.redone(class);
        let count = blocks.len() as f64;
        let mut paths: Vec<_> = self.paths(class, way).into_iter().collect();
        paths.sort_by_key(|(tensor, _)| *tensor);
        let activation = |(tensor, path): &(TensorId, Path)| {
            let Ways { sent, least } = self.ways(*tensor, path, None);
            let twice = self.again(class, (*tensor, path), &redone, None);
            let sent = count * (sent[0] + sent[1]) + again * twice;
            let of: Vec<_> = blocks
                .iter()
                .map(|block| (*block, self.tensor_in(class, *tensor, *block)))
                .collect();
            MovedTensor {
                name: self.name(of[0], path),
                kind: MovedKind::Activation,
                blocks: blocks.len(),
                last: self.last(&of),
                sent_bytes: rounds * sent,
                least_bytes: rounds * count * (least[0] + least[1]),
                of,
            }
        };
        paths.iter().map(activation).collect()
    }

    /// All products of the blocks that are done in one way.
    fn products_of(&self, way: usize) -> Vec<MovedTensor> {
        let class = &self.prepared.classes[self.outcome.choice.ways[way].0];
        self.products(class, way, &self.blocks(way))
    }

    /// The blocks that are done in one way.
    fn blocks(&self, way: usize) -> Vec<usize> {
        let blocks = self.outcome.choice.of_block.iter().enumerate();
        blocks.filter(|(_, of)| **of == way).map(|(block, _)| block).collect()
    }

    /// The tensors of a block that nodes exchange.
    pub fn paths(&self, class: &Class, way: usize) -> Paths {
        let graph = &self.prepared.graph;
        let mut paths = Paths::new();
        for (variable, option) in self.chain.chosen(&self.outcome.choice, way) {
            match variable {
                Variable::Tensor(tensor, sides) => {
                    let path = paths.entry(*tensor).or_default();
                    path.between = Some(sides[option].clone());
                    path.leaves = class.exit == Some(*tensor);
                }
                Variable::Node(id, strategies) => {
                    let (node, strategy) = (&graph.nodes[*id], &strategies[option]);
                    let declaration = &class.work[id].declaration;
                    for (place, tensor) in node.outputs.iter().enumerate() {
                        let sides = declaration.output_sides(place, strategy);
                        paths.entry(*tensor).or_default().made = Some(sides);
                    }
                    for (place, tensor) in node.inputs.iter().enumerate() {
                        if graph.tensors[*tensor].role == Role::Activation {
                            let sides = declaration.input_sides(place, strategy);
                            let path = paths.entry(*tensor).or_default();
                            path.read.push(sides);
                            path.readers.push((*id, place));
                        }
                    }
                }
            }
        }
        paths
    }

    /// What a tensor sends on its way, and the least of it: no less than to the reader that is
    /// farthest away.
    pub fn ways(&self, tensor: TensorId, path: &Path, level: Option<usize>) -> Ways {
        let shape = &self.prepared.graph.tensors[tensor].shape;
        let Some(origin) = path.origin() else { return Ways::default() };
        let sent = |from: &Sides, to: &Sides| {
            let sent = |from, to| self.costs.conversion_sent(shape, from, to, level);
            [sent(&from.value, &to.value), sent(&to.gradient, &from.gradient)]
        };
        let least = |to: &Sides| {
            let bytes = |from: &Layout, to: &Layout| {
                relayout(shape, &self.costs.mesh, from, to) * self.costs.precision.element
            };
            [bytes(&origin.value, &to.value), bytes(&to.gradient, &origin.gradient)]
        };
        let middle = path.between.as_ref().unwrap_or(origin);
        let mut ways = Ways { sent: sent(origin, middle), least: [0.0; 2] };
        for read in &path.read {
            let [forward, backward] = sent(middle, read);
            ways.sent = [ways.sent[0] + forward, ways.sent[1] + backward];
        }
        let leaving = path.between.iter().filter(|_| path.leaves);
        for [forward, backward] in path.read.iter().chain(leaving).map(least) {
            ways.least = [ways.least[0].max(forward), ways.least[1].max(backward)];
        }
        ways
    }

    /// For every block, bytes of a micro-batch that a device sends of its activations, over one level
    /// of the cluster or all.
    pub fn micro(&self, level: Option<usize>) -> Vec<f64> {
        let Outcome { choice, savings, .. } = self.outcome;
        let of_way = |way: usize| {
            let class = &self.prepared.classes[choice.ways[way].0];
            let (paths, redone) = (self.paths(class, way), self.redone(class));
            let once = paths.iter().flat_map(|(id, path)| self.ways(*id, path, level).sent);
            let twice =
                paths.iter().map(|(id, path)| self.again(class, (*id, path), &redone, level));
            [once.sum::<f64>(), twice.sum()]
        };
        let ways: Vec<[f64; 2]> = (0..choice.ways.len()).map(of_way).collect();
        let block = |(way, again): (&usize, &bool)| {
            let [once, twice] = ways[*way];
            if *again { once + twice } else { once }
        };
        choice.of_block.iter().zip(&savings.recomputed).map(block).collect()
    }

    /// The nodes of a block that are computed again for backward where it keeps nothing: those whose
    /// results gradients read, and those on the way to them.
    pub fn redone(&self, class: &Class) -> HashSet<NodeId> {
        let nodes = &self.prepared.graph.nodes;
        let mut makers: HashMap<TensorId, NodeId> = HashMap::new();
        let mut open: Vec<TensorId> = Vec::new();
        for id in class.nodes.clone() {
            let (node, work) = (&nodes[id], &class.work[&id]);
            makers.extend(node.outputs.iter().map(|made| (*made, id)));
            open.extend(work.read_inputs.iter().map(|place| node.inputs[*place]));
            open.extend(work.read_outputs.iter().map(|place| node.outputs[*place]));
        }
        let mut redone = HashSet::new();
        while let Some(tensor) = open.pop() {
            let Some(maker) = makers.get(&tensor).filter(|_| class.exit != Some(tensor)) else {
                continue;
            };
            if redone.insert(*maker) {
                open.extend(&nodes[*maker].inputs);
            }
        }
        redone
    }

    /// What a tensor sends of a micro-batch while a block computes again: it is brought once more to
    /// whom that takes, and to gradients, unless it is kept.
    pub fn again(
        &self,
        class: &Class,
        (tensor, path): (TensorId, &Path),
        redone: &HashSet<NodeId>,
        level: Option<usize>,
    ) -> f64 {
        let (Some(made), false) = (&path.made, path.leaves) else { return 0.0 };
        let shape = &self.prepared.graph.tensors[tensor].shape;
        let sent = |from: &Sides, to: &Sides| {
            self.costs.conversion_sent(shape, &from.value, &to.value, level)
        };
        let graph = &self.prepared.graph;
        let own = class.work.iter().any(|(id, work)| {
            let mut read = work.read_outputs.iter().map(|place| graph.nodes[*id].outputs[*place]);
            read.any(|read| read == tensor)
        });
        let reads = |(_, (id, place)): &(&Sides, &(NodeId, usize))| {
            own || redone.contains(id) || class.work[id].read_inputs.contains(place)
        };
        let middle = path.between.as_ref().unwrap_or(made);
        let readers: Vec<_> = path.read.iter().zip(&path.readers).filter(reads).collect();
        let parts = readers.iter().map(|(read, _)| sent(middle, read)).sum::<f64>();
        if readers.is_empty() { 0.0 } else { sent(made, middle) + parts }
    }

    /// What a tensor of a block is called; of one that enters, into what.
    fn name(&self, (block, tensor): (usize, TensorId), path: &Path) -> String {
        let graph = &self.prepared.graph;
        let name = &graph.tensors[tensor].name;
        match &path.made {
            None => format!("{name} into {}", graph.blocks[block].name),
            Some(_) => name.clone(),
        }
    }

    /// What stands in a block at the place of a tensor of its class.
    fn tensor_in(&self, class: &Class, tensor: TensorId, block: usize) -> TensorId {
        let graph = &self.prepared.graph;
        let shift = graph.blocks[block].nodes.start - class.nodes.start;
        let same = |(mine, there): (&Vec<TensorId>, &Vec<TensorId>)| {
            mine.iter().position(|one| *one == tensor).map(|place| there[place])
        };
        let of_node = |id: NodeId| {
            let (mine, there) = (&graph.nodes[id], &graph.nodes[id + shift]);
            same((&mine.outputs, &there.outputs)).or_else(|| same((&mine.inputs, &there.inputs)))
        };
        class.nodes.clone().find_map(of_node).unwrap_or(tensor)
    }

    /// The last of several blocks by its name.
    pub fn last(&self, of: &[(usize, TensorId)]) -> Option<String> {
        let last = of.iter().map(|(block, _)| *block).max()?;
        (of.len() > 1).then(|| self.prepared.graph.blocks[last].name.clone())
    }

    /// What is sent of parameters, and of those that stand at its place in equal blocks.
    fn parameter_rows(&self) -> Vec<MovedTensor> {
        let mut rows: BTreeMap<(usize, TensorId), MovedTensor> = BTreeMap::new();
        for parameter in &self.parameters {
            let first = &parameter.users[0];
            let empty = || MovedTensor {
                name: self.prepared.graph.tensors[parameter.tensor].name.clone(),
                kind: MovedKind::Parameter,
                blocks: 0,
                last: None,
                sent_bytes: 0.0,
                least_bytes: 0.0,
                of: Vec::new(),
            };
            let way = self.outcome.choice.of_block[first.block];
            let row = rows.entry((way, first.tensor)).or_insert_with(empty);
            row.blocks += 1;
            if row.blocks > 1 {
                row.last = Some(self.prepared.graph.blocks[first.block].name.clone());
            }
            row.of.extend(parameter.users.iter().map(|user| (user.block, parameter.tensor)));
            row.sent_bytes += self.sent_of(parameter);
            row.least_bytes += self.least(parameter);
        }
        rows.into_values().collect()
    }

    /// Bytes that devices of all its stages send of a parameter.
    pub fn sent_of(&self, parameter: &Parameter) -> f64 {
        self.sent(parameter, None).into_iter().map(|(_, sent)| sent.all()).sum()
    }

    /// How a block's parameter is divided.
    pub fn sharding(&self, block: usize, tensor: TensorId) -> Sharding {
        let usual = self.outcome.candidate.division.usual();
        self.outcome.savings.sharding((block, tensor)).unwrap_or(usual)
    }

    /// What goes from stage to stage, there and back; with chunks also from the last to the first.
    fn messages(&self) -> Vec<MovedTensor> {
        let Outcome { stages, choice, schedule, .. } = self.outcome;
        let last = stages.len() - 1;
        let largest = stages.iter().max_by(|a, b| a.message_bytes.total_cmp(&b.message_bytes));
        let row = |(at, stage): (usize, &crate::search::StageOutcome)| {
            let times = if at < last { schedule.chunks() } else { schedule.chunks() - 1 };
            let stage = if at < last { stage } else { largest? };
            let (shape, _) = self.chain.exit(choice, stage.blocks.end - 1)?;
            let times = 2.0 * (times * self.outcome.rounds) as f64;
            let elements = shape.iter().product::<usize>() as f64;
            let devices = self.costs.mesh.iter().product::<usize>() as f64;
            Some(MovedTensor {
                name: format!("stage {at} to stage {}", (at + 1) % stages.len()),
                kind: MovedKind::Message,
                blocks: 1,
                last: None,
                sent_bytes: times * stage.message_bytes,
                least_bytes: times * elements / devices * self.costs.precision.element,
                of: Vec::new(),
            })
        };
        stages.iter().enumerate().filter(|_| last > 0).filter_map(row).collect()
    }
}

/// Of all tensors, those that a node of a block reads or writes.
pub(super) fn of_node(
    prepared: &Prepared,
    moved: &Moved,
    (block, node): (usize, NodeId),
) -> Vec<MovedTensor> {
    let graph = &prepared.graph;
    let node = &graph.nodes[node];
    let mine: Vec<(usize, TensorId)> =
        node.inputs.iter().chain(&node.outputs).map(|tensor| (block, *tensor)).collect();
    let named = |one: &MovedTensor| {
        let (_, tensor) = one.of.iter().find(|of| mine.contains(of))?;
        let name = &graph.tensors[*tensor].name;
        let name = match one.name.contains(" into ") {
            true => format!("{name} into {}", graph.blocks[block].name),
            false => name.clone(),
        };
        Some(MovedTensor { name, ..one.clone() })
    };
    moved.tensors.iter().filter_map(named).collect()
}
