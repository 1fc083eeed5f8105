//! `thinwire plan price`: computes the cost of a plan with a given mesh, stages, micro-batches and schedule.

use std::num::NonZeroUsize;

use anyhow::{Result, anyhow};
use thinwire_plan::cost::{Division, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::{counted, plan_file, price_report};
use thinwire_plan::search::{Candidate, Recompute, Rule, Settings};

use super::choices::Choices;
use super::subject::Subject;
use crate::codings::{self, at_least_one, one_of};
use crate::failure::OrHint;
use crate::output::{print, print_json, say};
use crate::word_wrap::wrapped;

/// Plan only how operators are cut, and show the predicted time and memory. Members of the cluster are in the
/// order of its file.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Stages of the pipeline
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one())]
    stages: NonZeroUsize,
    /// The mesh of a stage, such as 2,2
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1", value_parser = at_least_one())]
    mesh: Vec<NonZeroUsize>,
    /// Micro-batches of a step
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one())]
    micro_batches: NonZeroUsize,
    /// ZeRO stage: 0, 1, 2, 3 or each
    ///
    /// One stage for all parameters, or 'each' for the fastest stage of each parameter.
    #[arg(long, value_name = "STAGE", default_value = "0", value_parser = division)]
    zero: Division,
    /// Axes that may be cut: free, data, grid or plain
    ///
    /// free allows all axes. data allows only the batch. grid allows the batch on the first dimension of
    /// the mesh, and any other axis on the second. plain allows batch and features, but not sequences.
    #[arg(long, value_name = "AXES", default_value = "free", hide_possible_values = true, value_parser = one_of(CUTS))]
    cuts: Rule,
    /// Order of micro-batches, such as gpipe
    ///
    /// gpipe, 1f1b, interleaved:CHUNKS or zero-bubble.
    #[arg(long, value_name = "NAME", default_value = "1f1b", value_parser = schedule)]
    schedule: Schedule,
    /// When backward computes forward again
    ///
    /// never, always, or only in the blocks that would not fit in memory otherwise (free).
    #[arg(long, value_name = "WHEN", hide_possible_values = true, num_args = 0..=1, default_value = "never", default_missing_value = "always", value_parser = one_of(RECOMPUTE))]
    recompute: Recompute,
    #[command(flatten)]
    choices: Choices,
}

const CUTS: &[(&str, Rule)] =
    &[("free", Rule::Free), ("data", Rule::Data), ("grid", Rule::Grid), ("plain", Rule::PlainGrid)];

const RECOMPUTE: &[(&str, Recompute)] =
    &[("never", Recompute::Never), ("always", Recompute::Always), ("free", Recompute::Free)];

/// Computes the cost of a plan.
///
/// # Errors
/// If there is no such plan, or a file cannot be read or written.
pub fn run(args: &Args) -> Result<u8> {
    let cluster = args.subject.cluster()?;
    let source = args.subject.source()?;
    let schedule = Some(args.schedule);
    let settings = Settings { recompute: args.recompute, schedule, ..args.choices.settings()? };
    codings::tell(&settings);
    check_batch(args)?;
    let candidate = candidate(args)?;
    settings.pins.iter().try_for_each(|pin| pin.check_mesh(&candidate.mesh))?;
    let mut planner = args.subject.planner(&source, settings);
    let found = planner.plan_for(&cluster, &candidate)?;
    let plan = plan_file(&args.subject.model, source.1, &planner, &cluster, &found)?;
    args.subject.write(&plan)?;
    let used = found.best.candidate.stages * found.best.candidate.mesh.iter().product::<usize>();
    if used < cluster.size() {
        let (all, left) = (cluster.size(), cluster.size() - used);
        say(format!("warning: {left} of {all} devices stay idle: --stages and --mesh use {used}"));
    }
    match args.subject.json {
        true => print_json(&plan)?,
        false => print(wrapped(&price_report(&planner, &cluster, &found)?))?,
    }
    Ok(0)
}

/// Refuses micro-batches that cannot be divided evenly among the ranks if only the batch is cut.
fn check_batch(args: &Args) -> Result<()> {
    let (batch, micro_batches) = (args.subject.batch.get(), args.micro_batches.get());
    let ranks = args.mesh.iter().try_fold(1, |ranks: usize, size| ranks.checked_mul(size.get()));
    // More devices than can be counted are more than the cluster has, which is said later.
    let Some(ranks) = ranks else { return Ok(()) };
    if args.cuts != Rule::Data || batch.is_multiple_of(micro_batches.saturating_mul(ranks)) {
        return Ok(());
    }
    let message = format!(
        "batch of {batch} in {} does not divide among {}",
        counted(micro_batches, "micro-batch"),
        counted(ranks, "device")
    );
    Err(anyhow!(message)).or_hint("give another --batch or --mesh, or --cuts free")
}

fn candidate(args: &Args) -> Result<Candidate> {
    if args.mesh.len() > 3 {
        let error = anyhow!("--mesh of {} dimensions, expected 1 to 3", args.mesh.len());
        return Err(error).or_hint("--mesh 4,2 is of two dimensions and 8 devices, for instance");
    }
    Ok(Candidate {
        stages: args.stages.get(),
        mesh: args.mesh.iter().map(|size| size.get()).collect(),
        micro_batches: args.micro_batches.get(),
        division: args.zero,
        rule: args.cuts,
    })
}

fn division(text: &str) -> Result<Division, String> {
    Ok(match text {
        "0" => Division::Alike(Sharding::None),
        "1" => Division::Alike(Sharding::Optimizer),
        "2" => Division::Alike(Sharding::Gradients),
        "3" => Division::Alike(Sharding::Parameters),
        "each" => Division::Each,
        _ => return Err(format!("'{text}', expected 0, 1, 2, 3 or each")),
    })
}

fn schedule(name: &str) -> Result<Schedule, String> {
    let interleaved = || match name.strip_prefix("interleaved:")?.parse() {
        Ok(chunks @ 1..=1024) => Some(Schedule::Interleaved { chunks }),
        _ => None,
    };
    let found = match name {
        "gpipe" => Some(Schedule::Gpipe),
        "1f1b" => Some(Schedule::OneForwardOneBackward),
        "zero-bubble" => Some(Schedule::ZeroBubble),
        _ => interleaved(),
    };
    let expected = "expected gpipe, 1f1b, interleaved:CHUNKS or zero-bubble";
    found.ok_or_else(|| format!("'{name}', {expected}"))
}
