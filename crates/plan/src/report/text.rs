//! The report: the time of a step, how time and memory are divided, and the reasons.

use thinwire_program::{counted, devices};

use super::activations::activation_text;
use super::stages::stages;
use super::{LevelTraffic, TensorTraffic, Traffic, codecs, recompute_text, traffic, zero_text};
use crate::cost::Cost;
use crate::error::{scaled, size};
use crate::search::{
    Chain, Evaluated, Found, Outcome, Overlap, Planner, StageOutcome, best_of, costs, timeline,
};
use crate::{Cluster, Error};

const GIB: f64 = (1_u64 << 30) as f64;
/// Part of the step time by which a plan must be faster to count as another one.
const FASTER: f64 = 1e-3;

/// The reason why there is no expert plan, if it is not a lack of memory.
pub const NO_EXPERT: &str =
    "impossible: neither batch nor blocks can be divided among these devices in this way";

/// Number of tensors that are shown.
const TENSORS: usize = 10;

/// The effect of a change of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    /// The change: `twice the bandwidth of level 'pod'`.
    pub change: String,
    /// Seconds of a step of the same plan after the change.
    pub seconds: f64,
}

/// Returns the step times of the plan with twice the bandwidth of each level, and with devices of twice the
/// rate.
///
/// # Errors
/// If this planner has not made the plan.
pub fn sensitivities(
    planner: &Planner,
    cluster: &Cluster,
    outcome: &Outcome,
) -> Result<Vec<Sensitivity>, Error> {
    let mut changes = Vec::new();
    for (at, level) in cluster.levels.iter().enumerate() {
        let mut changed = cluster.clone();
        changed.levels[at] = level.scaled(2.0);
        changes.push((format!("twice the bandwidth of level '{}'", level.name), changed));
    }
    let mut changed = cluster.clone();
    changed.devices.iter_mut().for_each(|device| device.flops_per_s *= 2.0);
    changes.push(("twice the flops of devices".to_owned(), changed));
    let base = again(planner, cluster, outcome)?;
    let sensitivity = |(change, changed): (String, Cluster)| {
        let seconds = outcome.seconds * again(planner, &changed, outcome)? / base;
        Ok(Sensitivity { change, seconds })
    };
    changes.into_iter().map(sensitivity).collect()
}

/// Describes whether more memory would help this plan, or another that does not fit.
fn memory(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<String, Error> {
    let rate = found.best.seconds_per_byte;
    if rate > 0.0 {
        let saved = seconds(rate * GIB);
        return Ok(format!("memory binds: one GiB more a device would save some {saved}"));
    }
    let known = found.others.iter().chain([&found.best]).map(|plan| plan.seconds);
    let boundless_s = planner.boundless_s(cluster)?;
    Ok(match boundless_s < (1.0 - FASTER) * known.fold(f64::INFINITY, f64::min) {
        true => format!("memory binds: with more of it a step takes {}", seconds(boundless_s)),
        false => "memory does not bind".to_owned(),
    })
}

/// Returns the step time of a plan's strategies on another cluster, in seconds.
fn again(planner: &Planner, cluster: &Cluster, outcome: &Outcome) -> Result<f64, Error> {
    let candidate = &outcome.candidate;
    let prepared = planner.prepared_of(outcome)?;
    let settings = planner.settings_of(outcome);
    let here = costs(cluster, candidate, &settings);
    let given = Chain::new(prepared, &here, candidate.rule)?.given(&outcome.choice);
    let chain = Chain::given_by(prepared, &here, candidate.rule, &given)?;
    match best_of(&chain, &here, candidate, &settings, &|| f64::INFINITY) {
        Evaluated::Found(outcome) => Ok(outcome.seconds),
        _ => Ok(outcome.seconds),
    }
}

/// Returns the report as text.
///
/// # Errors
/// If this planner has not made the plan.
pub fn report(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<String, Error> {
    let best = &found.best;
    let mut lines = headlines(planner, best);
    lines.extend(idle(cluster, found));
    let cluster = found.used(cluster);
    let traffic = traffic(planner, cluster, found)?;
    lines.extend(summary(planner, cluster, found, &traffic)?);
    lines.extend([String::new(), "beside it:".to_owned()]);
    lines.extend(found.experts.iter().map(|(expert, plan)| beside(best, expert.name(), plan)));
    lines.push(String::new());
    lines.extend(sent(&traffic, found));
    lines.push(String::new());
    for Sensitivity { change, seconds: then } in sensitivities(planner, cluster, best)? {
        let faster = (100.0 * (1.0 - then / best.seconds)).max(0.0);
        lines.push(format!("{change} would save {faster:.1} % of the step with this plan"));
    }
    lines.push(memory(planner, cluster, found)?);
    lines.push(searched(found));
    Ok(lines.join("\n") + "\n")
}

/// Returns the report of a plan whose mesh and schedule were given, without comparisons.
///
/// # Errors
/// If this planner has not made the plan.
pub fn price_report(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<String, Error> {
    let mut lines = headlines(planner, &found.best);
    let traffic = traffic(planner, cluster, found)?;
    lines.extend(summary(planner, cluster, found, &traffic)?);
    lines.push(String::new());
    lines.extend(sent(&traffic, found));
    Ok(lines.join("\n") + "\n")
}

/// Returns the step time and the plan, each in one line.
fn headlines(planner: &Planner, best: &Outcome) -> Vec<String> {
    let rate = planner.batch() as f64 / best.seconds;
    let step = format!("a step takes {}: {rate:.1} sequences a second", seconds(best.seconds));
    vec![step, describe(best)]
}

/// Describes how the step time is divided, the codecs, and the stages.
fn summary(
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
    traffic: &Traffic,
) -> Result<Vec<String>, Error> {
    let best = &found.best;
    let mut lines: Vec<String> = Vec::new();
    lines.push(String::new());
    lines.extend(split(best, planner.settings().overlap));
    lines.extend(codecs::describe(planner, best));
    lines.extend(activation_text(planner, cluster, found, &traffic.crossed));
    lines.push(String::new());
    lines.extend(stages(planner, best)?);
    lines.extend(shares(best));
    Ok(lines)
}

/// Returns the lines about bytes: by level, for products, and by tensor.
fn sent(traffic: &Traffic, found: &Found) -> Vec<String> {
    let mut lines: Vec<String> = traffic.levels.iter().map(level).collect();
    lines.push(String::new());
    lines.extend(products(traffic, found.best.candidate.stages));
    lines.push(String::new());
    lines.extend(tensors(traffic));
    lines
}

/// Compares an expert's plan with the plan that was found.
fn beside(best: &Outcome, name: &str, plan: &Result<Outcome, f64>) -> String {
    match plan {
        Ok(plan) => {
            let slower = 100.0 * (plan.seconds / best.seconds - 1.0);
            let (takes, plan) = (seconds(plan.seconds), describe(plan));
            format!("  {name:14} {takes} ({slower:+.1} %)  {plan}")
        }
        Err(bytes) if bytes.is_finite() => {
            format!("  {name:14} does not fit: {} a device", size(*bytes))
        }
        Err(_) => format!("  {name:14} {NO_EXPERT}"),
    }
}

/// Describes the number of candidates, and how far the plan may be from the best one.
fn searched(found: &Found) -> String {
    let [all, solved] = found.candidates;
    let gap = 100.0 * found.gap();
    let searched = match all == solved {
        true => format!("all {all} candidates solved"),
        false => format!("{solved} of {all} candidates solved, the others are bounded"),
    };
    let bound = seconds(found.bound_s);
    format!("no plan of this search takes less than {bound}: the gap is {gap:.1} %; {searched}")
}

/// Returns a warning if devices stay idle.
pub fn idle(cluster: &Cluster, found: &Found) -> Option<String> {
    let (used, all) = (found.best.candidate.devices(), cluster.size());
    let left = all - used;
    let on = match &found.devices()[..] {
        [] => String::new(),
        devices => format!("; ranks are for devices {}", listed(devices)),
    };
    let text =
        || format!("warning: {left} of {all} devices stay idle: no plan for all is faster{on}");
    (used < all).then(text)
}

/// Largest number of runs of neighbouring devices in the text; the plan file has all of them.
const RUNS: usize = 6;

/// Lists numbers of devices; a run of neighbours appears as its first and last number.
fn listed(devices: &[usize]) -> String {
    let runs = devices.chunk_by(|one, next| one + 1 == *next);
    let text = |run: &[usize]| match run {
        [first, .., last] => format!("{first} to {last}"),
        _ => run[0].to_string(),
    };
    let more = if runs.clone().count() > RUNS { ", ..." } else { "" };
    format!("{}{more}", runs.take(RUNS).map(text).collect::<Vec<_>>().join(", "))
}

/// Describes the bytes that a device sends over a level.
fn level(traffic: &LevelTraffic) -> String {
    let LevelTraffic { level, collective_bytes, parameter_bytes, message_bytes, busy_s } = traffic;
    let [collectives, parameters, messages] =
        [collective_bytes, parameter_bytes, message_bytes].map(|bytes| size(*bytes));
    format!(
        "a device sends over level '{level}': {collectives} in collectives, {parameters} for parameters, {messages} between stages; {}",
        seconds(*busy_s)
    )
}

/// Describes the bytes of products, for one of the most numerous kind of blocks.
fn products(traffic: &Traffic, stages: usize) -> Vec<String> {
    let Some(most) = traffic.products.iter().map(|one| one.blocks).max() else { return Vec::new() };
    let row = |one: &TensorTraffic| {
        let sent = size(one.sent_bytes * stages as f64 / one.blocks as f64);
        let over = over(one.sent_bytes, one.least_bytes, " where operands lie so");
        format!("  {:28} {sent:>9}, {over}", one.name)
    };
    let title =
        "a device of its stage sends in a step, for operands and results of a block's products:";
    let rows = traffic.products.iter().filter(|one| one.blocks == most).map(row);
    std::iter::once(title.to_owned()).chain(rows).collect()
}

/// Describes the bytes of all tensors, and of the tensors that send the most.
fn tensors(traffic: &Traffic) -> Vec<String> {
    let Traffic { tensors, sent_bytes, least_bytes, .. } = traffic;
    if tensors.is_empty() {
        return vec!["no tensor is sent".to_owned()];
    }
    let (sent, over) = (size(*sent_bytes), over(*sent_bytes, *least_bytes, ""));
    let mut lines = vec![format!(
        "a device sends {sent} of tensors in a step, mean of all stages, {over}; most of it:"
    )];
    lines.extend(tensors.iter().take(TENSORS).map(tensor));
    lines
}

/// Describes the bytes of one tensor.
pub(super) fn tensor(one: &TensorTraffic) -> String {
    let TensorTraffic { name, blocks, last, sent_bytes, least_bytes, .. } = one;
    let over = over(*sent_bytes, *least_bytes, "");
    let blocks = last.as_ref().map(|last| format!(" in {blocks} blocks to {last}"));
    let blocks = blocks.unwrap_or_default();
    format!("  {name:36} {:>9}{blocks}, {over}", size(*sent_bytes))
}

/// Describes the ratio of the bytes that are sent to the least.
fn over(sent_bytes: f64, least_bytes: f64, of: &str) -> String {
    match least_bytes > 0.0 {
        true => format!("{:.2} times the least{of}", sent_bytes / least_bytes),
        false => "nothing needs to be".to_owned(),
    }
}

/// Describes a plan in one line.
pub fn describe(outcome: &Outcome) -> String {
    let candidate = &outcome.candidate;
    format!(
        "{} of {}, {}, {}, {}{}",
        counted(candidate.stages, "stage"),
        devices(&candidate.mesh),
        counted(candidate.micro_batches, "micro-batch"),
        outcome.schedule,
        zero_text(outcome),
        recompute_text(outcome),
    )
}

/// Describes how the time of the slowest stage is divided.
fn split(outcome: &Outcome, overlap: Overlap) -> Vec<String> {
    let micro = |stage: &&StageOutcome| stage.cost.micro_s();
    let slowest = outcome.stages.iter().max_by(|a, b| micro(a).total_cmp(&micro(b)));
    let Some(stage) = slowest else { return Vec::new() };
    let rounds = outcome.rounds as f64;
    let Cost { forward_s, backward_s, forward_wire_s, backward_wire_s, .. } = stage.cost;
    let Cost { gather_s, recompute_s, .. } = stage.cost;
    let compute = rounds * (forward_s + backward_s);
    let wire = rounds * (forward_wire_s + gather_s + backward_wire_s);
    let again = rounds * recompute_s;
    let simulated = timeline(outcome, overlap);
    let tail = simulated
        .map_or_else(|| outcome.tail_s(overlap), |run| (outcome.seconds - run.seconds).max(0.0));
    let idle = (outcome.seconds - compute - again - wire - tail).max(0.0);
    let share = |part: f64| format!("{} ({:.1} %)", seconds(part), 100.0 * part / outcome.seconds);
    let mut lines = vec![
        format!("compute        {}", share(compute)),
        format!("forward again  {}", share(again)),
        format!("collectives    {}", share(wire)),
        format!("pipeline idle  {}", share(idle)),
        format!("end of step    {}", share(tail)),
    ];
    for (what, travels_s, behind) in [
        ("gradients travel", stage.cost.sync_s, "backward"),
        ("new parameters travel", stage.cost.all_gather_s, "the next forward"),
    ] {
        if travels_s > 0.0 {
            let travels = seconds(travels_s);
            lines.push(format!("{what} for {travels}, most of it may hide behind {behind}"));
        }
    }
    lines
}

/// Describes the micro-batches of every part of the batch, if devices differ.
fn shares(outcome: &Outcome) -> Option<String> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for share in &outcome.shares {
        match parts.last_mut() {
            Some((count, of)) if of == share => *count += 1,
            _ => parts.push((1, *share)),
        }
    }
    let part = |(count, share): &(usize, usize)| format!("{count} of {share}");
    let parts: Vec<String> = parts.iter().map(part).collect();
    let text = || format!("micro-batches along the first dimension: {}", parts.join(", "));
    (!parts.is_empty()).then(text)
}

/// Formats seconds with a unit and three digits.
pub(super) fn seconds(seconds: f64) -> String {
    if seconds >= 1e15 {
        return format!("{seconds:.2e} s");
    }
    scaled(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_devices_are_short() {
        assert_eq!(listed(&[3]), "3");
        assert_eq!(listed(&(8..4096).collect::<Vec<_>>()), "8 to 4095");
        assert_eq!(listed(&[0, 1, 4, 5, 3]), "0 to 1, 4 to 5, 3");
        let apart: Vec<usize> = (0..100).map(|device| 2 * device).collect();
        assert_eq!(listed(&apart), "0, 2, 4, 6, 8, 10, ...");
    }
}
