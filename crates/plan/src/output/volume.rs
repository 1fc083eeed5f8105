//! What products with parameters send, beside the least that any way to compute them sends.
//!
//! The bound is that of Al Daas, Ballard, Grigori, Kumar and Rouse, "Tight Memory-Independent
//! Parallel Matrix Multiplication Communication Lower Bounds" (SPAA'22), for a product of m × n × k
//! (m ≥ n ≥ k) on p devices that start with one copy of the operands and end with one of the result:
//!
//! | p | elements per device |
//! |---|---|
//! | up to m/n | (1 − 1/p) nk |
//! | up to mn/k² | 2 √(mnk²/p) − (m + n) k/p |
//! | beyond | 3 (mnk/p)^(2/3) − (mn + mk + nk)/p |
//!
//! A step has three products of these sizes, for the output and for both gradients. It is a
//! yardstick: data parallelism keeps copies of parameters from step to step and may lie below it.

use thinwire_model::{Declaration, Operator};

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
            let least_bytes = 3.0 * costs.precision.element * least(sizes, devices);
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

/// The least elements that each of so many devices sends or receives for a product.
pub(super) fn least(mut sizes: [f64; 3], devices: f64) -> f64 {
    sizes.sort_by(|a, b| b.total_cmp(a));
    let ([m, n, k], p) = (sizes, devices);
    if p <= m / n {
        (1.0 - 1.0 / p) * n * k
    } else if p <= m * n / (k * k) {
        2.0 * (m * n * k * k / p).sqrt() - (m + n) * k / p
    } else {
        3.0 * (m * n * k / p).powf(2.0 / 3.0) - (m * n + m * k + n * k) / p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_published_one() {
        // Two square products of 8192 on 8, 64 and 512 devices, three products of each in a step.
        for (devices, million) in [(8.0, 150.99), (64.0, 56.62), (512.0, 16.52)] {
            let found = 2.0 * 3.0 * least([8192.0; 3], devices) / 1e6;
            assert!((found / million - 1.0).abs() < 1e-3, "{devices}: {found}, expected {million}");
        }
    }

    #[test]
    fn the_bound_has_no_jumps() {
        for edge in [4.0, 64.0] {
            let at = |p| least([1024.0, 256.0, 64.0], p);
            assert!((at(edge * (1.0 - 1e-9)) / at(edge * (1.0 + 1e-9)) - 1.0).abs() < 1e-6);
        }
    }
}
