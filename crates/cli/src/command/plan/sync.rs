//! `thinwire plan sync`: explains the choices of codecs and algorithms for the exchange of gradients.

use std::path::PathBuf;

use anyhow::{Error, Result, anyhow};
use serde::Serialize;
use thinwire_report::figures::median;
use thinwire_sync::{Alternative, Assignment, BucketRecord, Planning, Policy, StepRecord};
use thinwire_train::session::OF_PLAN;

use super::explained;
use crate::failure::hinted;
use crate::output::{print, print_json};
use crate::training::trace::{self, Line};
use crate::word_wrap::wrapped;

/// Explain the plan of a training with --codec auto.
#[derive(clap::Args)]
pub struct Args {
    /// Trace of a training, by `thinwire train --trace`
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Step after which the plan was in force [default: the last]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// A plan with its measurements.
#[derive(Serialize)]
pub struct Explanation<'a> {
    /// The step after which the plan was made.
    pub step: u64,
    #[serde(flatten)]
    pub planning: &'a Planning,
    /// The number of steps in which all buckets were exchanged by this plan, and the median time of
    /// these steps.
    pub measured_steps: usize,
    pub measured_iteration_s: Option<f64>,
    /// The median time from the moment when a bucket is ready until its average is complete, for every
    /// bucket and each alternative that was used.
    pub measured_s: Vec<Vec<Option<f64>>>,
}

/// Prints the plan with its explanation.
///
/// # Errors
/// If the trace cannot be read or contains no plan.
pub fn run(args: &Args) -> Result<u8> {
    let lines = trace::read(&args.trace)?;
    check_step(args, &lines)?;
    let upto = args.step.unwrap_or(u64::MAX);
    let planned = lines.iter().rev().filter(|line| line.record.step <= upto);
    let (step, planning) = planned
        .filter_map(|line| Some((line.record.step, line.record.planning.as_deref()?)))
        .next()
        .ok_or_else(|| missing(args, &lines))?;
    let measured_s = (0..planning.buckets.len()).map(|bucket| measured(&lines, bucket, planning));
    let mut steps_s = iterations(&lines, planning);
    let explanation = Explanation {
        step,
        planning,
        measured_steps: steps_s.len(),
        measured_iteration_s: (!steps_s.is_empty()).then(|| median(&mut steps_s)),
        measured_s: measured_s.collect(),
    };
    if args.json {
        print_json(&explanation)?;
    } else {
        print(wrapped(&explained::text(&explanation)))?;
    }
    Ok(0)
}

/// Refuses a step after the end of the trace.
fn check_step(args: &Args, lines: &[Line]) -> Result<()> {
    let last = lines.iter().map(|line| line.record.step).max();
    match (args.step, last) {
        (Some(asked), Some(last)) if asked > last => {
            Err(anyhow!("--step {asked}, but {} ends with step {last}", args.trace.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the error that the trace has no plan, or no plan up to the requested step.
fn missing(args: &Args, lines: &[Line]) -> Error {
    let trace = args.trace.display();
    let planned = lines.iter().filter(|line| line.record.planning.is_some());
    match (args.step, planned.map(|line| line.record.step).min()) {
        (Some(step), Some(first)) => {
            anyhow!("{trace} has no plan up to step {step}: its first plan is after step {first}")
        }
        _ if lines.iter().any(|line| line.codec == OF_PLAN) => hinted(
            anyhow!(
                "{trace} is of a training under a plan, whose gradients are not planned by step"
            ),
            "the plan file says how gradients travel; thinwire plan make --explain NODE says why",
        ),
        _ => {
            let is_fixed = |line: &&Line| {
                matches!(line.codec.parse(), Ok(Policy::Fixed(_) | Policy::Named(_)))
            };
            let named = lines.first().filter(is_fixed);
            let error = named.map_or(anyhow!("{trace} has no plan"), |line| {
                let codec = &line.codec;
                anyhow!("{trace} is of a training with codec {codec}, which plans nothing by step")
            });
            hinted(error, "train with --codec auto --trace FILE")
        }
    }
}

/// Returns the seconds of each step in which all buckets were exchanged by the plan.
fn iterations(lines: &[Line], planning: &Planning) -> Vec<f64> {
    let follows = |record: &&StepRecord| {
        let pairs = record.buckets.iter().zip(&planning.buckets);
        let mut pairs = pairs.map(|(bucket, decision)| (bucket, decision.chosen.as_ref()));
        record.buckets.len() == planning.buckets.len()
            && pairs.all(|(bucket, way)| way.is_some_and(|way| travelled(bucket, way)))
    };
    let followed = lines.iter().map(|line| &line.record).filter(follows);
    followed.map(|record| record.backward_s + record.wait_s + record.commit_s).collect()
}

/// Returns the median seconds of each alternative of a bucket, over the steps in which it was in force.
fn measured(lines: &[Line], bucket: usize, planning: &Planning) -> Vec<Option<f64>> {
    let decision = &planning.buckets[bucket];
    let records = || {
        let of_step = |line: &'_ Line| line.record.buckets.get(bucket).cloned();
        lines.iter().filter_map(of_step).filter(|record| record.name == decision.name)
    };
    let of = |alternative: &Alternative| {
        let alike = records().filter(|record| travelled(record, &alternative.assignment));
        let mut times: Vec<f64> = alike.map(|record| record.done_s - record.ready_s).collect();
        (!times.is_empty()).then(|| median(&mut times))
    };
    decision.alternatives.iter().map(of).collect()
}

fn travelled(record: &BucketRecord, way: &Assignment) -> bool {
    record.codec == way.codec
        && record.algorithm == way.algorithm
        && record.partitions == way.partitions
}
