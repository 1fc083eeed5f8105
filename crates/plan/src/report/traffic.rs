//! The bytes that a plan sends in a step, by level of the cluster, by tensor and by product, and the
//! fewest bytes that any way to convert the tensors would send.
//!
//! All bytes are those of the plan's programs, encoded if the plan encodes them, without headers. The
//! fewest bytes are counted for unencoded elements, given the cut of every operator. If p ranks share a
//! parameter, its gradient is summed once per step and all of them then have the sum: 2 (p−1)/p of its
//! elements. A message between stages is the tensor itself, sent once.
//!
//! Laws: if nothing is encoded, no tensor sends less than its bound; the sum over all tensors equals the
//! bytes that the programs of all ranks send.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use thinwire_model::{Graph, NodeId, Role, TensorId};
use thinwire_program::bytes::{Exchange, Kind, Route};
use thinwire_program::{Assignment, StepBytes};

use super::bounds::Bounds;
use super::graph_model::GraphModel;
use super::levels::{crossed_by_activations, levels};
use super::products::products;
use super::{LevelTraffic, plan_file};
use crate::search::{Found, Planner, Prepared, costs};
use crate::{Cluster, Error};

/// The bytes that a plan sends in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// For every level of the cluster, the bytes that the busiest stage's devices send over it.
    #[serde(skip)]
    pub levels: Vec<LevelTraffic>,
    /// For every level of the cluster, whether activations or their gradients travel over it.
    #[serde(skip)]
    pub(super) crossed: Vec<bool>,
    /// The tensors that send bytes, those with the most bytes first.
    pub tensors: Vec<TensorTraffic>,
    /// The products that send bytes, by their nodes; their bytes are also part of `tensors`.
    pub products: Vec<TensorTraffic>,
    /// Bytes that a device sends in a step, mean over the devices of all stages.
    pub sent_bytes: f64,
    /// The fewest bytes that a device could send.
    pub least_bytes: f64,
}

/// The bytes that a plan sends for one tensor, together with the corresponding tensors of equal blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorTraffic {
    /// The tensor's name in the first of the blocks.
    pub name: String,
    /// The kind of tensor.
    pub kind: TrafficKind,
    /// The number of blocks.
    pub blocks: usize,
    /// The name of the tensor in the last block, if there are several.
    pub last: Option<String>,
    /// Bytes that a device sends in a step for all these blocks, mean over the devices of all stages.
    pub sent_bytes: f64,
    /// The fewest bytes that a device could send.
    pub least_bytes: f64,
    /// The blocks, each with its tensor at this place.
    #[serde(skip)]
    pub(super) of: Vec<(usize, TensorId)>,
}

/// The kind of a [`TensorTraffic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficKind {
    /// An activation and its gradient, within a stage.
    Activation,
    /// A parameter and its gradient.
    Parameter,
    /// An activation and its gradient, between stages.
    Message,
    /// The operands and the result of a product, with their gradients.
    Product,
}

impl TensorTraffic {
    /// Returns a row without tensors.
    pub(super) fn new(name: String, kind: TrafficKind) -> TensorTraffic {
        let (sent_bytes, least_bytes) = (0.0, 0.0);
        TensorTraffic { name, kind, blocks: 0, last: None, sent_bytes, least_bytes, of: Vec::new() }
    }

    /// Adds a tensor of a block.
    pub(super) fn count(&mut self, graph: &Graph, block: usize, tensor: TensorId) {
        self.of.push((block, tensor));
        self.blocks += 1;
        self.last = (self.blocks > 1).then(|| graph.blocks[block].name.clone());
    }
}

/// Returns the bytes that a plan sends in a step.
///
/// # Errors
/// If this planner has not made the plan, or its model has no gradients.
pub fn traffic(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<Traffic, Error> {
    let candidate = &found.best.candidate;
    let cluster = found.used(cluster);
    let file = plan_file("", 0, planner, cluster, found)?;
    let model = GraphModel::new(planner, &found.best, &file)?;
    let (assignment, bytes) = model.step()?;
    let costs = costs(cluster, candidate, &planner.settings_of(&found.best));
    let mut rows = Rows::new(&model, &assignment, &bytes);
    bytes.exchanges.iter().for_each(|one| rows.send(one));
    let mut tensors: Vec<TensorTraffic> = rows.rows.into_values().collect();
    let mut products = products(&model, &assignment, &bytes);
    // In the mean over the devices of all stages.
    let devices = (bytes.stages * bytes.width()) as f64;
    for list in [&mut tensors, &mut products] {
        for one in &mut *list {
            one.sent_bytes /= devices;
            one.least_bytes /= devices;
        }
        list.retain(|one| one.sent_bytes > 0.0);
        // Equal ones stay in the order of the model and of stages.
        list.sort_by(|a, b| b.sent_bytes.total_cmp(&a.sent_bytes));
    }
    let sum = |of: fn(&TensorTraffic) -> f64| tensors.iter().map(of).sum::<f64>();
    let (sent_bytes, least_bytes) = (sum(|one| one.sent_bytes), sum(|one| one.least_bytes));
    let crossed = crossed_by_activations(cluster, &costs, &bytes);
    let levels = levels(cluster, &costs, &bytes);
    Ok(Traffic { levels, crossed, tensors, products, sent_bytes, least_bytes })
}

/// The place of a tensor among those of equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// A parameter: the class of the block that reads it first, the node in the block, and the operand.
    Parameter([usize; 3]),
    /// An activation: the class of its block, the node in the block, and the output.
    Activation([usize; 3]),
    /// An input of the model.
    Input(TensorId),
    /// Messages from one stage to another, and back.
    Stages([usize; 2]),
}

/// The rows of a plan's tensors, in bytes of all devices.
struct Rows<'a> {
    model: &'a GraphModel<'a>,
    assignment: &'a Assignment<'a>,
    bytes: &'a StepBytes,
    /// Rows of tensors, then of messages.
    rows: BTreeMap<Place, TensorTraffic>,
    places: HashMap<TensorId, Place>,
}

impl<'a> Rows<'a> {
    fn new(
        model: &'a GraphModel<'a>,
        assignment: &'a Assignment<'a>,
        bytes: &'a StepBytes,
    ) -> Rows<'a> {
        let (rows, places) = (BTreeMap::new(), HashMap::new());
        let mut rows = Rows { model, assignment, bytes, rows, places };
        let mut bounds = Bounds::new(assignment, model.element_bytes);
        for tensor in 0..model.prepared.graph.tensors.len() {
            rows.add(tensor, &mut bounds);
        }
        rows
    }

    /// Adds a tensor of the model, with its least bytes, to the row of its place.
    fn add(&mut self, tensor: TensorId, bounds: &mut Bounds<'_>) {
        let graph = &self.model.prepared.graph;
        let Some((place, block)) = self.place(tensor) else { return };
        self.places.insert(tensor, place);
        let kind = match place {
            Place::Parameter(_) => TrafficKind::Parameter,
            _ => TrafficKind::Activation,
        };
        let name = &graph.tensors[tensor].name;
        let row = || TensorTraffic::new(name.clone(), kind);
        let row = self.rows.entry(place).or_insert_with(row);
        row.count(graph, block, tensor);
        row.least_bytes += match kind {
            TrafficKind::Parameter => bounds.parameter(tensor),
            _ => bounds.activation(tensor),
        };
    }

    /// Returns the place of a tensor, and its block.
    fn place(&self, tensor: TensorId) -> Option<(Place, usize)> {
        let GraphModel { prepared, outcome, .. } = self.model;
        let in_block = |(node, at): (NodeId, usize)| {
            let block = self.assignment.block(node);
            let offset = node.wrapping_sub(prepared.graph.blocks[block].nodes.start);
            ([outcome.choice.of_block[block], offset, at], block)
        };
        let read = || self.assignment.consumers[tensor].first().copied().map(in_block);
        let made = self.assignment.producers[tensor].map(in_block);
        let role = &prepared.graph.tensors[tensor].role;
        let (place, block) = made.or_else(read)?;
        let place = match made {
            _ if matches!(role, Role::Parameter(_)) => Place::Parameter(place),
            Some(_) => Place::Activation(place),
            None => Place::Input(tensor),
        };
        Some((place, block))
    }

    /// Adds the bytes of an exchange to the row of its tensor, or of its stages.
    fn send(&mut self, exchange: &Exchange) {
        let sent = self.bytes.bytes(exchange) as f64;
        if exchange.kind != Kind::Message {
            let row = self.places.get(&exchange.subject).and_then(|place| self.rows.get_mut(place));
            row.expect("a tensor of the model has a row").sent_bytes += sent;
            return;
        }
        let [from, to] = self.way(exchange);
        let new = || {
            let name = format!("stage {from} to stage {to}");
            TensorTraffic { blocks: 1, ..TensorTraffic::new(name, TrafficKind::Message) }
        };
        let row = self.rows.entry(Place::Stages([from, to])).or_insert_with(new);
        let elements = self.assignment.training.graph.tensors[exchange.tensor].elements();
        let once = self.model.plan.micro_batches * elements * self.model.element_bytes;
        row.sent_bytes += sent;
        row.least_bytes += once as f64;
    }

    /// Returns the stages of a message in the order of the forward pass, which is the reverse for gradients.
    fn way(&self, exchange: &Exchange) -> [usize; 2] {
        let Route::To(to) = exchange.route else { unreachable!("messages go to another stage") };
        match exchange.tensor == exchange.subject {
            true => [exchange.stage, to],
            false => [to, exchange.stage],
        }
    }
}

/// Returns the tensors that a node of a block reads or writes, with their names in this block.
pub(super) fn of_node(
    prepared: &Prepared,
    traffic: &Traffic,
    block: usize,
    node: NodeId,
) -> Vec<TensorTraffic> {
    let graph = &prepared.graph;
    let node = &graph.nodes[node];
    let mine: Vec<TensorId> = node.inputs.iter().chain(&node.outputs).copied().collect();
    let named = |one: &TensorTraffic| {
        let of = one.of.iter().filter(|(_, tensor)| mine.contains(tensor));
        // A row has several tensors that the node reads where it reads those of several blocks.
        let (_, tensor) = of.min_by_key(|(of, _)| of.abs_diff(block))?;
        Some(TensorTraffic { name: graph.tensors[*tensor].name.clone(), ..one.clone() })
    };
    traffic.tensors.iter().filter_map(named).collect()
}
