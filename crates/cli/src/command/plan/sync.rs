//! `thinwire plan sync`: why gradients travel as they do.

use std::path::PathBuf;

use anyhow::{Error, Result, anyhow};
use serde::Serialize;
use thinwire_sync::{
    Alternative, Assignment, BucketRecord, Decision, LinkSpeed, Pair, Planning, Unequal, Verdict,
};

use crate::failure::hinted;
use crate::figures;
use crate::output::{print, print_json};
use crate::samples::median;
use crate::table::Table;
use crate::training::trace::{self, Line};

/// Explains the plan of a training with --codec auto.
#[derive(clap::Args)]
pub struct Args {
    /// What `thinwire train --trace` has written
    #[arg(long, value_name = "RUN")]
    trace: PathBuf,
    /// The plan that was in force after this step [default: the last one]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// A plan with what was measured of it.
#[derive(Serialize)]
struct Explanation<'a> {
    /// The step after which it was made.
    step: u64,
    #[serde(flatten)]
    planning: &'a Planning,
    /// For every bucket, the median time from ready to done of each alternative that ever travelled.
    measured_s: Vec<Vec<Option<f64>>>,
}

/// Prints the plan.
///
/// # Errors
/// If the trace cannot be read or has no plan.
pub fn run(args: &Args) -> Result<u8> {
    let lines = trace::read(&args.trace)?;
    let upto = args.step.unwrap_or(u64::MAX);
    let planned = lines.iter().rev().filter(|line| line.record.step <= upto);
    let (step, planning) = planned
        .filter_map(|line| Some((line.record.step, line.record.planning.as_deref()?)))
        .next()
        .ok_or_else(|| missing(args, &lines))?;
    let measured_s = (0..planning.buckets.len()).map(|bucket| measured(&lines, bucket, planning));
    let explanation = Explanation { step, planning, measured_s: measured_s.collect() };
    if args.json {
        print_json(&explanation)?;
    } else {
        print(text(&explanation))?;
    }
    Ok(0)
}

/// No plan at all, or none as early as was asked for.
fn missing(args: &Args, lines: &[Line]) -> Error {
    let trace = args.trace.display();
    let planned = lines.iter().filter(|line| line.record.planning.is_some());
    match (args.step, planned.map(|line| line.record.step).min()) {
        (Some(step), Some(first)) => {
            anyhow!("{trace} has no plan up to step {step}, its first one is after step {first}")
        }
        _ => hinted(anyhow!("{trace} has no plan"), "train with --codec auto --trace FILE"),
    }
}

/// What each alternative of a bucket took in the steps in which it was in force.
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

fn text(explanation: &Explanation<'_>) -> String {
    let planning = explanation.planning;
    let link = planning.link.as_ref().map_or("no link".to_owned(), described);
    let mut text = format!(
        "planned after step {}: {}\nlink: {link}; error budget: {}\niteration: {} planned, {} raw; decided in {}\n",
        explanation.step,
        planning.reason,
        budget(planning.error_budget),
        figures::seconds(planning.iteration_s),
        figures::seconds(planning.raw_iteration_s),
        figures::seconds(planning.took_s),
    );
    for (decision, measured_s) in planning.buckets.iter().zip(&explanation.measured_s) {
        text += &format!("\n{}\n{}", headline(decision), table(decision, measured_s));
    }
    text
}

fn described(link: &LinkSpeed) -> String {
    let speed = |bytes_per_s: f64, latency_s: f64| {
        let rate = figures::digits(bytes_per_s * 8e-6);
        format!("{rate} Mbit/s, {} one way", figures::seconds(latency_s))
    };
    let mut text = speed(link.bytes_per_s, link.latency_s);
    if let Some(Unequal { latency_s, bytes_per_s, slow }) = &link.unequal {
        text += &format!(" (most pairs {}", speed(*bytes_per_s, *latency_s));
        for Pair { ranks: (low, high), latency_s, bytes_per_s } in slow {
            text += &format!("; ranks {low} and {high} {}", speed(*bytes_per_s, *latency_s));
        }
        text += ")";
    }
    text
}

/// No number where the user has named the codecs.
fn budget(error: f64) -> String {
    if error == f64::MAX { "none, codecs were named".to_owned() } else { error.to_string() }
}

fn headline(decision: &Decision) -> String {
    format!(
        "{}: {} elements, ready at {}; {}",
        decision.name,
        figures::count(decision.elements as u64),
        figures::seconds(decision.ready_s),
        decision.because
    )
}

fn table(decision: &Decision, measured_s: &[Option<f64>]) -> Table {
    let header = ["  way", "error", "alone", "iteration", "exchange", "measured", "verdict"];
    let mut table = Table::new(header.map(str::to_owned));
    for (alternative, measured_s) in decision.alternatives.iter().zip(measured_s) {
        let Assignment { codec, algorithm, partitions } = &alternative.assignment;
        table.row([
            format!("  {codec} {algorithm} /{partitions}"),
            format!("{:.2e}", alternative.error),
            figures::seconds(alternative.alone_s),
            figures::seconds(alternative.iteration_s),
            figures::seconds(alternative.exchange_s),
            measured_s.map_or("–".to_owned(), figures::seconds),
            verdict(alternative.verdict).to_owned(),
        ]);
    }
    table
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Chosen => "chosen",
        Verdict::OverBudget => "over budget",
        Verdict::Slower => "slower",
        Verdict::LosesMore => "loses more",
        Verdict::NoBetter => "no better",
    }
}
