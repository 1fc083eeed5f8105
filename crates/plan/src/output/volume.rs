//! What products with parameters send, beside the least that any way to compute them sends that
//! starts with one copy of the operands and ends with one of the result.
//!
//! A step has three products of these sizes, for the output and for both gradients. It is a
//! yardstick: data parallelism keeps copies of parameters from step to step and may lie below it.

use thinwire_model::{Declaration, Operator};

use super::least::product;
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::Cost;
use crate::search::{Chain, Found, Planner, Treated, costs};

/// What a node sends in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// Its name.
    pub node: String,
    /// How many blocks are done alike.
    pub blocks: usize,
    /// Bytes that a device sends in a step, for its operands, its result and their gradients.
    pub sent_bytes: f64,
    /// The least that three such products send.
    pub least_bytes: f64,
}

/// What the products with parameters send, of one block of each way.
///
/// # Errors
/// If the planner has not made this plan.
pub fn volumes(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<Vec<Volume>, Error> {
    let outcome = &found.best;
    let candidate = &outcome.candidate;
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(candidate).ok_or_else(unplanned)?;
    let costs = costs(cluster, candidate, planner.settings());
    let sent = Chain::sent(prepared, &costs, candidate.rule, None)?;
    let rounds = candidate.micro_batches as f64;
    let devices = candidate.mesh.iter().product::<usize>() as f64;
    let mut all = Vec::new();
    for (way, (class, _)) in outcome.choice.ways.iter().enumerate() {
        let blocks = outcome.choice.of_block.iter().filter(|of| **of == way).count();
        let first = outcome.choice.of_block.iter().position(|of| *of == way);
        let first = first.ok_or_else(unplanned)?;
        let forwards = if outcome.spared.again[first] { 2.0 } else { 1.0 };
        for id in prepared.classes[*class].nodes.clone() {
            let node = &prepared.graph.nodes[id];
            let Operator::Linear(_) = node.operator else { continue };
            let part = sent.part(&outcome.choice, way, id).ok_or_else(unplanned)?;
            let mine = |one: &&Treated| one.block == first && node.inputs.contains(&one.tensor);
            let treated = outcome.spared.treated.iter().filter(mine);
            let changes = treated.filter_map(|one| sent.like(&outcome.choice, one));
            let cost: Cost = changes.map(|way| way.change).chain([part.cost]).sum();
            let forward = forwards * (part.wire.forward_s + cost.forward_wire_s) + cost.gather_s;
            let backward = part.wire.backward_s + cost.backward_wire_s;
            let sent_bytes = rounds * (forward + backward) + cost.sync_s;
            let sizes = sizes(&prepared.graph.declaration(node), rounds);
            let least_bytes = 3.0 * costs.precision.element * product(sizes, devices);
            let node = node.name.clone();
            all.push(Volume { node, blocks, sent_bytes, least_bytes });
        }
    }
    Ok(all)
}

/// The sizes of a product: all axes but k and n make one, over all micro-batches.
fn sizes(declaration: &Declaration, rounds: f64) -> [f64; 3] {
    let mut sizes = [rounds, 1.0, 1.0];
    for axis in &declaration.axes {
        let place = match axis.name {
            'n' => 1,
            'k' => 2,
            _ => 0,
        };
        sizes[place] *= axis.length as f64;
    }
    sizes
}
