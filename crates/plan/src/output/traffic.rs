//! Bytes of a step, level by level of the cluster.

use std::ops::AddAssign;

use super::moved::Step;
use crate::Error;
use crate::cluster::Cluster;
use crate::cost::Group;
use crate::search::{Chain, Found, Planner, costs};

/// What the busiest device sends over one level in a step, encoded where the plan encodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The level.
    pub level: String,
    /// Collectives of micro-batches.
    pub collective_bytes: f64,
    /// Gradients and parameters once a step.
    pub parameter_bytes: f64,
    /// Messages between stages.
    pub message_bytes: f64,
    /// Seconds in which the busiest port of the level sends what all devices behind it send.
    pub busy_s: f64,
}

/// Bytes that a device of a stage sends: collectives, parameters, messages.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes([f64; 3]);

impl AddAssign<[f64; 3]> for Bytes {
    fn add_assign(&mut self, other: [f64; 3]) {
        self.0.iter_mut().zip(other).for_each(|(sum, bytes)| *sum += bytes);
    }
}

impl Bytes {
    fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// The most bytes that leave by one port, which so many devices share in their order; `stages` says
/// what each device of every stage sends.
fn busiest_port(stages: &[f64], width: usize, sharing: usize) -> f64 {
    let mut ports = vec![0.0; (stages.len() * width).div_ceil(sharing)];
    for device in 0..stages.len() * width {
        ports[device / sharing] += stages[device / width];
    }
    ports.into_iter().fold(0.0, f64::max)
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
    let costs = costs(cluster, candidate, &planner.settings_of(outcome));
    let chain = Chain::new(prepared, &costs, candidate.rule)?;
    let step = Step::new((prepared, &chain), &costs, outcome);
    let width = candidate.mesh.iter().product();
    let mut devices = 1;
    let mut all = Vec::new();
    for (at, level) in cluster.levels.iter().enumerate() {
        let stages = stages(&step, cluster, at);
        let totals: Vec<f64> = stages.iter().map(Bytes::total).collect();
        let busiest = stages.iter().max_by(|a, b| a.total().total_cmp(&b.total()));
        let busy_s = busiest_port(&totals, width, devices) / level.bytes_per_s;
        devices *= level.size;
        let Bytes([collective_bytes, parameter_bytes, message_bytes]) =
            busiest.copied().unwrap_or_default();
        let level = level.name.clone();
        all.push(Traffic { level, collective_bytes, parameter_bytes, message_bytes, busy_s });
    }
    Ok(all)
}

/// What a device of every stage sends over a level.
fn stages(step: &Step<'_>, cluster: &Cluster, level: usize) -> Vec<Bytes> {
    let outcome = step.outcome;
    let rounds = outcome.rounds as f64;
    let mut all = vec![Bytes::default(); outcome.stages.len()];
    let micro = step.micro(Some(level));
    for (stage, sum) in outcome.stages.iter().zip(&mut all) {
        let blocks = stage.blocks.clone();
        *sum += [blocks.map(|block| rounds * micro[block]).sum(), 0.0, 0.0];
    }
    for parameter in &step.parameters {
        for (stage, sent) in step.sent(parameter, Some(level)) {
            all[stage] += [sent.micro, sent.once, sent.messages];
        }
    }
    for (stage, bytes) in messages(step, cluster, level) {
        all[stage] += [0.0, 0.0, bytes];
    }
    all
}

/// Of messages between stages that cross a level and none beyond it, who sends how much: activations
/// on, and with several chunks from the last stage to the first, and gradients back.
fn messages(step: &Step<'_>, cluster: &Cluster, level: usize) -> Vec<(usize, f64)> {
    let outcome = step.outcome;
    let devices = outcome.candidate.mesh.iter().product();
    let (count, chunks) = (outcome.stages.len(), outcome.schedule.chunks());
    let mut all = Vec::new();
    for (at, stage) in outcome.stages[..count - 1].iter().enumerate() {
        if Group::next_stage(cluster, devices, at).level == level {
            let bytes = (outcome.rounds * chunks) as f64 * stage.message_bytes;
            all.extend([(at, bytes), (at + 1, bytes)]);
        }
    }
    let largest = outcome.stages.iter().map(|stage| stage.message_bytes).fold(0.0, f64::max);
    if chunks > 1 && step.level([0, count - 1]) == level {
        let bytes = (outcome.rounds * (chunks - 1)) as f64 * largest;
        all.extend([(0, bytes), (count - 1, bytes)]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_sends_what_the_devices_behind_it_send() {
        // Four stages of one device, two to a port; then one stage over both ports.
        assert_eq!(busiest_port(&[1.0, 2.0, 4.0, 1.0], 1, 2), 5.0);
        assert_eq!(busiest_port(&[3.0], 4, 2), 6.0);
        assert_eq!(busiest_port(&[3.0, 1.0], 2, 1), 3.0);
        assert_eq!(busiest_port(&[3.0, 1.0], 3, 4), 10.0);
    }
}
