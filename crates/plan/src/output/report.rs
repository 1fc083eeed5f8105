//! The report: what a step takes, where its time and memory go, and why.

use std::fmt::Write;

use super::activations::activation_text;
use super::codecs;
use super::counted::{counted, devices};
use super::moved::{Moved, MovedTensor, moved};
use super::spared::{again_text, zero_text};
use super::stages::stages;
use super::traffic::{Traffic, traffic};
use crate::Error;
use crate::cluster::{Cluster, Level};
use crate::cost::Cost;
use crate::error::size;
use crate::search::{
    Candidate, Chain, Found, Outcome, Overlap, Planner, StageOutcome, Verdict, best_of, costs,
    tail_s,
};

const GIB: f64 = (1_u64 << 30) as f64;
/// A plan that is faster by less is no other one.
const FASTER: f64 = 1e-3;

/// Why an expert plan is missing, where memory is not what it lacks.
pub const NO_EXPERT: &str = "cannot be: neither batch nor blocks divide so among these devices";

/// Tensors that are shown.
const TENSORS: usize = 10;

/// What a change of the cluster would buy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    /// The change: `twice the bandwidth of level 'pod'`.
    pub change: String,
    /// Seconds of a step of the same plan after it.
    pub seconds: f64,
}

/// What twice the bandwidth of each level, and twice the rate of devices, would make of the plan.
///
/// # Errors
/// If the planner has planned something else.
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

/// Whether more memory would help this plan, or another that does not fit.
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

/// Seconds of the same strategies on another cluster.
fn again(planner: &Planner, cluster: &Cluster, outcome: &Outcome) -> Result<f64, Error> {
    let candidate = &outcome.candidate;
    let unplanned = || Error::impossible("the planner has not made this plan");
    let prepared = planner.prepared(candidate).ok_or_else(unplanned)?;
    let settings = planner.settings_of(outcome);
    let here = costs(cluster, candidate, &settings);
    let given = Chain::new(prepared, &here, candidate.rule)?.given(&outcome.choice);
    let chain = Chain::given_by(prepared, &here, candidate.rule, &given)?;
    match best_of(&chain, &here, candidate, &settings, &|| f64::INFINITY) {
        Verdict::Found(outcome) => Ok(outcome.seconds),
        _ => Ok(outcome.seconds),
    }
}

/// The report as text.
pub fn report(planner: &Planner, cluster: &Cluster, found: &Found) -> Result<String, Error> {
    let best = &found.best;
    let overlap = planner.settings().overlap;
    let mut text = String::new();
    let mut line = |what: String| {
        let _ = writeln!(text, "{what}");
    };
    let rate = planner.batch() as f64 / best.seconds;
    line(format!("a step takes {}: {rate:.1} sequences a second", seconds(best.seconds)));
    line(describe(best));
    idle(cluster, best).into_iter().for_each(&mut line);
    cluster.levels.iter().filter_map(placed).for_each(&mut line);
    line(String::new());
    split(best, overlap).into_iter().for_each(&mut line);
    codecs::describe(planner, best).into_iter().for_each(&mut line);
    activation_text(planner, cluster, found)?.into_iter().for_each(&mut line);
    line(String::new());
    stages(planner, best)?.into_iter().for_each(&mut line);
    shares(best).into_iter().for_each(&mut line);
    line(String::new());
    line("beside it:".to_owned());
    for (expert, outcome) in &found.experts {
        line(match outcome {
            Ok(outcome) => {
                let slower = 100.0 * (outcome.seconds / best.seconds - 1.0);
                let plan = describe(outcome);
                format!(
                    "  {:14} {} ({slower:+.1} %)  {plan}",
                    expert.name(),
                    seconds(outcome.seconds)
                )
            }
            Err(bytes) if bytes.is_finite() => {
                format!("  {:14} does not fit: {} a device", expert.name(), size(*bytes))
            }
            Err(_) => format!("  {:14} {NO_EXPERT}", expert.name()),
        });
    }
    line(String::new());
    traffic(planner, cluster, found)?.iter().map(level).for_each(&mut line);
    line(String::new());
    let moved = moved(planner, cluster, found)?;
    products(&moved).into_iter().for_each(&mut line);
    line(String::new());
    tensors(&moved).into_iter().for_each(&mut line);
    line(String::new());
    for Sensitivity { change, seconds: then } in sensitivities(planner, cluster, best)? {
        let faster = 100.0 * (1.0 - then / best.seconds);
        line(format!("{change} would save {faster:.1} % of the step with this plan"));
    }
    line(memory(planner, cluster, found)?);
    let [all, solved] = found.candidates;
    let gap = 100.0 * found.gap();
    let searched = match all == solved {
        true => format!("all {all} candidates solved"),
        false => format!("{solved} of {all} candidates solved, the others are bounded"),
    };
    line(format!(
        "no plan of this search takes less than {}: the gap is {gap:.1} %; {searched}",
        seconds(found.bound_s)
    ));
    Ok(text)
}

/// In which order the members of a level stand, where links differ.
pub fn placed(level: &Level) -> Option<String> {
    let links = level.links.as_ref()?;
    if links.order.is_sorted() {
        return Some(format!("members of level '{}' stand in the order of the file", level.name));
    }
    let order: Vec<String> = links.order.iter().map(usize::to_string).collect();
    let (name, order) = (&level.name, order.join(", "));
    Some(format!(
        "members of level '{name}', counted from 0, stand in the order {order}: start ranks so"
    ))
}

/// How many devices do nothing.
pub fn idle(cluster: &Cluster, outcome: &Outcome) -> Option<String> {
    let Candidate { stages, mesh, .. } = &outcome.candidate;
    let (used, all) = (stages * mesh.iter().product::<usize>(), cluster.size());
    let left = all - used;
    let text = || format!("warning: {left} of {all} devices stay idle: no plan for all is faster");
    (used < all).then(text)
}

/// What a device sends over a level.
fn level(traffic: &Traffic) -> String {
    let Traffic { level, collective_bytes, parameter_bytes, message_bytes, busy_s } = traffic;
    let mib = |bytes: &f64| bytes / (GIB / 1024.0);
    format!(
        "a device sends over level '{level}': {:.1} MiB in collectives, {:.1} MiB for parameters, {:.1} MiB between stages; {}",
        mib(collective_bytes),
        mib(parameter_bytes),
        mib(message_bytes),
        seconds(*busy_s)
    )
}

/// What the products of the way that most blocks have send, in one of these blocks.
fn products(moved: &Moved) -> Vec<String> {
    let Some(most) = moved.products.iter().map(|one| one.blocks).max() else { return Vec::new() };
    let row = |one: &MovedTensor| {
        let sent = one.sent_bytes / one.blocks as f64 / (GIB / 1024.0);
        let over = match one.ratio() {
            Some(ratio) => format!("{ratio:.2} times the least where operands lie so"),
            None => "nothing needs to be".to_owned(),
        };
        format!("  {:28} {sent:10.1} MiB, {over}", one.name)
    };
    let title = "a device sends in a step, for the operands and results of a block's products:";
    let rows = moved.products.iter().filter(|one| one.blocks == most).map(row);
    std::iter::once(title.to_owned()).chain(rows).collect()
}

/// What all tensors send, and those that send the most.
fn tensors(moved: &Moved) -> Vec<String> {
    let Moved { tensors, sent_bytes, least_bytes, .. } = moved;
    if tensors.is_empty() {
        return vec!["no tensor is sent".to_owned()];
    }
    let over = match *least_bytes > 0.0 {
        true => format!("{:.2} times the least", sent_bytes / least_bytes),
        false => "nothing needs to be".to_owned(),
    };
    let sent = size(*sent_bytes);
    let mut lines = vec![format!(
        "of all tensors a device sends {sent} in a step, the mean of all stages, {over}; most of"
    )];
    lines.extend(tensors.iter().take(TENSORS).map(tensor));
    lines
}

/// What one tensor sends.
pub(super) fn tensor(one: &MovedTensor) -> String {
    let MovedTensor { name, blocks, sent_bytes, .. } = one;
    let over = match one.ratio() {
        Some(ratio) => format!("{ratio:.2} times the least"),
        None => "nothing needs to be".to_owned(),
    };
    let blocks = if *blocks > 1 { format!(" in {blocks} blocks") } else { String::new() };
    format!("  {name:36} {:>9}{blocks}, {over}", size(*sent_bytes))
}

/// A plan in one line.
pub fn describe(outcome: &Outcome) -> String {
    let candidate = &outcome.candidate;
    format!(
        "{} of {}, {}, {}, {}{}",
        counted(candidate.stages, "stage"),
        devices(&candidate.mesh),
        counted(candidate.micro_batches, "micro-batch"),
        outcome.schedule,
        zero_text(outcome),
        again_text(outcome),
    )
}

/// Where the time of the slowest stage goes.
fn split(outcome: &Outcome, overlap: Overlap) -> Vec<String> {
    let micro = |stage: &&StageOutcome| stage.cost.micro_s();
    let slowest = outcome.stages.iter().max_by(|a, b| micro(a).total_cmp(&micro(b)));
    let Some(stage) = slowest else { return Vec::new() };
    let rounds = outcome.rounds as f64;
    let Cost { forward_s, backward_s, forward_wire_s, backward_wire_s, .. } = stage.cost;
    let Cost { gather_s, again_s, .. } = stage.cost;
    let compute = rounds * (forward_s + backward_s);
    let wire = rounds * (forward_wire_s + gather_s + backward_wire_s);
    let again = rounds * again_s;
    let tail = tail_s(&outcome.stages, overlap);
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
        ("new parameters travel", stage.cost.home_s, "the next forward"),
    ] {
        if travels_s > 0.0 {
            let travels = seconds(travels_s);
            lines.push(format!("{what} for {travels}, most of it may hide behind {behind}"));
        }
    }
    lines
}

/// Who does how many micro-batches, where devices differ.
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

pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        endless if endless >= 1e15 => format!("{endless:.2e} s"),
        long if long >= 1.0 => format!("{long:.2} s"),
        middle if middle >= 1e-3 => format!("{:.2} ms", 1e3 * middle),
        short => format!("{:.1} us", 1e6 * short),
    }
}
