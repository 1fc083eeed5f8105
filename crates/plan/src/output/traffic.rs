//! Bytes of a step, level by level of the cluster.

use crate::Error;
use crate::cluster::Cluster;
use crate::cost::{Cost, Group};
use crate::search::{Chain, Found, Outcome, Planner, costs, spared_costs};

/// What the busiest device sends over one level in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The level.
    pub level: String,
    /// Collectives of micro-batches.
    pub collective_bytes: f64,
    /// Gradients and parameters once a step, before gradients are encoded.
    pub parameter_bytes: f64,
    /// Messages between stages.
    pub message_bytes: f64,
    /// Seconds in which its share of the level's port sends so much.
    pub busy_s: f64,
}

/// What the busiest stage's devices send in a step, for every level of the cluster.
///
/// # Errors
/// If the planner has not made this plan.
pub fn traffic(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<Vec<Traffic>, Error> {
    let outcome = &found.best;
    let candidate = &outcome.candidate;
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(candidate).ok_or_else(unplanned)?;
    let costs = costs(cluster, candidate, planner.settings());
    let rounds = outcome.rounds as f64;
    let mut devices = 1.0;
    let mut all = Vec::new();
    for (at, level) in cluster.levels.iter().enumerate() {
        let sent = Chain::sent(prepared, &costs, candidate.rule, Some(at))?;
        let blocks = sent.costs(&outcome.choice);
        let blocks = spared_costs((&sent, &outcome.choice), &blocks, &outcome.spared);
        let stage = |stage: &crate::search::StageOutcome| {
            let cost: Cost = blocks[stage.blocks.clone()].iter().copied().sum();
            (rounds * cost.micro_s(), cost.sync_s)
        };
        let busiest = outcome.stages.iter().map(stage);
        let busiest = busiest.max_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let (collective_bytes, parameter_bytes) = busiest.unwrap_or_default();
        // A stage in the middle sends activations on and gradients back.
        let ways = (candidate.stages - 1).min(2) as f64;
        let chunks = outcome.schedule.chunks() as f64;
        let message_bytes = rounds * ways * chunks * message(cluster, outcome, at);
        let bytes = collective_bytes + parameter_bytes + message_bytes;
        let busy_s = bytes * devices / level.bytes_per_s;
        devices *= level.size as f64;
        let level = level.name.clone();
        all.push(Traffic { level, collective_bytes, parameter_bytes, message_bytes, busy_s });
    }
    Ok(all)
}

/// The largest message between two stages that crosses a level and none beyond it.
fn message(cluster: &Cluster, outcome: &Outcome, level: usize) -> f64 {
    let devices = outcome.candidate.mesh.iter().product();
    let stages = outcome.stages.iter().enumerate();
    let here = stages.filter(|(at, _)| Group::next_stage(cluster, devices, *at).level == level);
    here.map(|(_, stage)| stage.message_bytes).fold(0.0, f64::max)
}
