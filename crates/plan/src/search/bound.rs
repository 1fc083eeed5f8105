//! Lower bound of a candidate before any strategy is looked at.
//!
//! The arithmetic takes F seconds forward and B backward of a micro-batch, over all stages. The
//! slowest of p stages takes s: at least a p-th of both, and as long as ⌈n/p⌉ of n equal blocks. A
//! step then takes m · s for m micro-batches, and the pipeline's fill: (F + B − s)/v for v chunks,
//! F · (1 − s/(F + B)) with zero-bubble. Both grow with F, B and s, so lower bounds of these bound
//! the step.

use super::{Candidate, Class, Prepared, Recompute, Rule, Settings, costs};
use crate::Cluster;
use crate::cost::Replication;
use crate::pipeline::Schedule;

/// Returns a lower bound in seconds on all plans of a candidate.
pub fn bound_s(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
) -> f64 {
    let costs = costs(cluster, candidate, settings);
    let forwards = if settings.recompute == Recompute::Always { 2.0 } else { 1.0 };
    // Under other rules products may be copied although they could be cut.
    let replication = match candidate.rule {
        Rule::Free => Replication::Never,
        _ => Replication::Allowed,
    };
    // In the order of nodes, so that sums are the same to the last bit.
    let of = |class: &Class| {
        costs.least_s(class.nodes.clone().filter_map(|node| class.work.get(&node)), replication)
    };
    let of_class: Vec<[f64; 2]> = prepared.classes.iter().map(of).collect();
    let mut counts = vec![0_usize; of_class.len()];
    prepared.of_block.iter().for_each(|class| counts[*class] += 1);
    let sum = |place: usize| -> f64 {
        of_class.iter().zip(&counts).map(|(one, count)| one[place] * *count as f64).sum()
    };
    let (forward_s, backward_s) = (forwards * sum(0), sum(1));
    let stages = candidate.stages as f64;
    let equal = (forward_s + backward_s) / stages;
    if candidate.rule == Rule::Free && !cluster.kinds.is_empty() {
        // Parts of a batch may do unequally many micro-batches.
        return equal * candidate.micro_batches as f64;
    }
    let most = |(one, count): (&[f64; 2], &usize)| {
        (forwards * one[0] + one[1]) * count.div_ceil(candidate.stages) as f64
    };
    let slowest = of_class.iter().zip(&counts).map(most).fold(equal, f64::max);
    let schedules = settings.schedules(candidate, prepared.of_block.len());
    let step = |schedule: Schedule| {
        let rounds = candidate.micro_batches as f64 * slowest;
        rounds + fill_s(schedule, [forward_s, backward_s], slowest)
    };
    schedules.into_iter().flatten().map(step).fold(f64::INFINITY, f64::min)
}

/// Returns the least seconds of a pipeline's fill beside its slowest stage.
fn fill_s(schedule: Schedule, [forward_s, backward_s]: [f64; 2], slowest: f64) -> f64 {
    let once = forward_s + backward_s;
    let others = (once - slowest).max(0.0);
    match schedule {
        Schedule::Gpipe | Schedule::OneForwardOneBackward => others,
        Schedule::Interleaved { chunks } => others / chunks as f64,
        Schedule::ZeroBubble if once > 0.0 => others * forward_s / once,
        Schedule::ZeroBubble => 0.0,
    }
}
