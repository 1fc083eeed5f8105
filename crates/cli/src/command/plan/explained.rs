//! A plan in words: the choice, the reason for it, and every bucket with its alternatives.

use std::collections::BTreeMap;

use thinwire_report::Table;
use thinwire_report::figures;
use thinwire_sync::{Assignment, Decision, LinkSpeed, Pair, Planning, Unequal, Units, Verdict};

use super::sync::Explanation;

/// Explanation of the tables' columns.
const LEGEND: &str = "\
columns: way: codec, algorithm, partitions; error: weighted error of one encoding (docs/algorithms.md), \
measured, or an upper bound before that
  alone: from ready to done with the network to itself; exchange: the same behind the buckets before it
  iteration: what a step would take if this bucket alone went so; measured: exchange in steps that went so
verdict: slower: the step or the exchange would be; loses more: by too much for what it saves; over \
budget: its error is
";

/// Rule that chooses a candidate.
const RULE: &str = "\
rule: first the ways that make the step shortest, of those within the error budget. Then every bucket goes \
back to what loses less, as long as the step stays within 1 % of the shortest. A plan less than 2 % faster \
than raw is not taken. After seventeen steps, trials of real steps decide between this plan, the one in force, \
raw and fixed codecs.
";

/// Returns the whole explanation.
pub fn text(explanation: &Explanation<'_>) -> String {
    let planning = explanation.planning;
    let link = planning.link.as_ref().map_or("no link".to_owned(), described);
    let mut text = format!(
        "planned after step {}: {}\nplan: {}\nstep: {}\nlink: {link}; error budget: {}; decided in {}\n{RULE}{LEGEND}",
        explanation.step,
        planning.reason,
        summary(planning),
        seconds(explanation),
        budget(planning.error_budget),
        figures::seconds(planning.took_s),
    );
    for (decision, measured_s) in planning.buckets.iter().zip(&explanation.measured_s) {
        text += &format!("\n{}\n{}", headline(decision), table(decision, measured_s));
    }
    text
}

/// Returns the number of buckets of each codec, and the part of all elements in them.
fn summary(planning: &Planning) -> String {
    let all: usize = planning.buckets.iter().map(|decision| decision.elements).sum();
    let mut codecs: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for decision in &planning.buckets {
        let Some(way) = &decision.chosen else { continue };
        let (buckets, elements) = codecs.entry(&way.codec).or_default();
        (*buckets, *elements) = (*buckets + 1, *elements + decision.elements);
    }
    let mut codecs: Vec<_> = codecs.into_iter().collect();
    codecs.sort_by_key(|(_, (_, elements))| std::cmp::Reverse(*elements));
    let part = |elements: usize| figures::percent(elements as f64 / all.max(1) as f64);
    let named = codecs.into_iter().map(|(codec, (buckets, elements))| {
        let s = if buckets == 1 { "" } else { "s" };
        format!("{codec} for {buckets} bucket{s} ({} of the elements)", part(elements))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Returns a step's time in seconds, from the start of the backward pass until all averages are complete.
fn seconds(explanation: &Explanation<'_>) -> String {
    let Planning { iteration_s, raw_iteration_s, .. } = explanation.planning;
    let measured = match (explanation.measured_iteration_s, explanation.measured_steps) {
        (Some(measured_s), steps) => {
            format!("{} measured (median of {steps})", figures::seconds(measured_s))
        }
        (None, _) => "never measured".to_owned(),
    };
    let [planned, raw] = [iteration_s, raw_iteration_s].map(|s| figures::seconds(*s));
    format!("{planned} predicted, {measured}; {raw} predicted if everything travelled raw")
}

fn described(link: &LinkSpeed) -> String {
    let speed = |bytes_per_s: f64, latency_s: f64| {
        let rate = figures::digits(bytes_per_s * 8e-6);
        format!("{rate} Mbit/s, {} one way", figures::seconds(latency_s))
    };
    let mut text = speed(link.bytes_per_s, link.latency_s);
    if let Some(Unequal { latency_s, bytes_per_s, slow, units }) = &link.unequal {
        text += &format!(" (most pairs {}", speed(*bytes_per_s, *latency_s));
        for Pair { ranks: (low, high), latency_s, bytes_per_s, .. } in slow {
            text += &format!("; ranks {low} and {high} {}", speed(*bytes_per_s, *latency_s));
        }
        if let Some(Units { ranks, latency_s, bytes_per_s, between_bytes_per_s }) = units {
            let within = speed(*bytes_per_s, *latency_s);
            let between = figures::digits(between_bytes_per_s * 8e-6);
            text += &format!(
                "; units of {ranks} ranks: {within} within, {between} Mbit/s per rank between"
            );
        }
        text += ")";
    }
    text
}

/// Returns the error budget as text; it has no number if the user named the codecs.
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
