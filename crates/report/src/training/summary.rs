//! The table at the end of a run, on the terminal.

use super::values::{Bucket, Report, Run};
use crate::figures::{bytes, count, percent, ratio, seconds};
use crate::table::Table;

/// Every figure of every run, a column per run.
pub fn summary(report: &Report) -> String {
    let mut table = Table::new(std::iter::once("codec").chain(report.runs.iter().map(Run::name)));
    for (name, figure) in figures(report) {
        table.row(std::iter::once(name.to_owned()).chain(report.runs.iter().map(figure)));
    }
    let planned = report.runs.iter().filter_map(|run| run.planned.as_ref());
    let planned: String =
        planned.map(|planned| format!("\n{}", super::planned::table(planned))).collect();
    let link = match report.link.is_empty() {
        true => String::new(),
        false => format!("\nlink: {}\n", report.link),
    };
    format!("{table}{}{link}{planned}", super::comparison::differences(report))
}

/// The codecs that were used, with how many buckets each: `auto` says here what it chose.
pub(super) fn chosen(run: &Run) -> Vec<(String, usize)> {
    let name = |bucket: &Bucket| format!("{} {}", bucket.codec, bucket.algorithm);
    tally(run.buckets.iter().map(name))
}

/// Returns each name once, with how often it is there, in the order of the first ones.
fn tally(names: impl IntoIterator<Item = String>) -> Vec<(String, usize)> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for name in names {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => all.push((name, 1)),
        }
    }
    all
}

pub(super) type Figure = fn(&Run) -> String;

/// Returns the figures in order: the table on the terminal and the one on the page are the same.
/// Under a plan the rank that computes the longest is not always rank 0.
pub(super) fn figures(report: &Report) -> Vec<(&'static str, Figure)> {
    let planned = report.is_planned();
    let limited = report.runs.iter().any(|run| run.floors.wire_s.is_some());
    let (in_rounds, has_buckets) =
        (report.runs.iter().any(|run| run.mode.is_some()), report.has_buckets());
    let of_images = report.runs.iter().any(|run| run.is_of_images);
    let shown = FIGURES.iter().filter(|(name, _)| match *name {
        WIRE_FLOOR => limited,
        ACCURACY => of_images,
        ROUNDS => in_rounds,
        name if OF_BUCKETS.contains(&name) => has_buckets,
        _ => true,
    });
    let named = shown.map(|(name, figure)| match *name {
        "floor: compute alone" if planned => ("floor: compute of the busiest rank", *figure),
        "step over compute alone" if planned => ("step over that compute", *figure),
        TOKENS if of_images => ("images/s", *figure),
        name => (name, *figure),
    });
    named.collect()
}

/// Figure of links alone whose bandwidth is known.
const WIRE_FLOOR: &str = "floor: bytes over bandwidth";
/// Figure of models of images alone.
const ACCURACY: &str = "validation accuracy";
const TOKENS: &str = "tokens/s";
/// Figure of trainings whose ranks exchange parameters in rounds.
const ROUNDS: &str = "rounds skipped";
/// Figures of trainings whose gradients travel in buckets.
const OF_BUCKETS: [&str; 5] =
    ["  decode of the result", "beside it: encode", "beside it: wire", "beside it: decode", HIDDEN];
/// Part of the exchange of which nobody waits for the end.
const HIDDEN: &str = "exchange hidden behind backward";

const FIGURES: &[(&str, Figure)] = &[
    ("training loss", |run| loss(run.last_loss())),
    ("validation loss", |run| loss(run.last_validation())),
    (ACCURACY, |run| run.accuracy.map_or("–".to_owned(), accuracy)),
    (TOKENS, |run| count(run.tokens_per_s.round() as u64)),
    ("bytes per step, raw", |run| bytes(run.raw_bytes)),
    ("bytes per step, sent", |run| bytes(run.sent_bytes)),
    ("raw over sent", |run| ratio(run.compression())),
    ("step", |run| seconds(run.time.step_s)),
    ("  compute", |run| seconds(run.time.compute_s)),
    ("  wait for the exchange", |run| part(run.time.wait_s)),
    ("  decode of the result", |run| part(run.time.commit_s)),
    ("beside it: encode", |run| part(run.time.encode_s)),
    ("beside it: wire", |run| part(run.time.wire_s)),
    ("beside it: decode", |run| part(run.time.decode_s)),
    (HIDDEN, |run| percent(run.overlap)),
    ("floor: compute alone", |run| seconds(run.floors.compute_s)),
    (WIRE_FLOOR, |run| run.floors.wire_s.map_or("–".to_owned(), seconds)),
    ("step over compute alone", |run| ratio(run.over_compute())),
    ("step over the larger floor", |run| ratio(run.time.step_s / run.floors.larger_s())),
    ("steps skipped", |run| count(run.skipped_steps)),
    (ROUNDS, |run| count(run.skipped_rounds)),
];

/// Time of a part of a step; a dash where most steps have no such part, as steps between rounds.
fn part(time_s: f64) -> String {
    if time_s == 0.0 { "–".to_owned() } else { seconds(time_s) }
}

fn accuracy(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

fn loss(loss: Option<f64>) -> String {
    loss.map_or("–".to_owned(), |loss| format!("{loss:.4}"))
}
