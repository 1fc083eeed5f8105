//! A report as JSON: one line per training, the figures first.

use serde::Serialize;

use super::{Bucket, Planned, Point, Report, Split};

/// One training. Seconds, bytes, nats per byte.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    codec: &'a str,
    ranks: u32,
    link: &'a str,
    link_bytes_per_s: Option<f64>,
    steps: usize,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    tokens_per_s: f64,
    step_s: f64,
    /// Compute alone: the first floor.
    compute_s: f64,
    /// Bytes over bandwidth: the second floor.
    wire_floor_s: Option<f64>,
    raw_bytes_per_step: f64,
    sent_bytes_per_step: f64,
    overlap: f64,
    skipped_steps: u64,
    /// Where the step went; `compute_s` in here is what ran beside the exchange.
    time: Split,
    buckets: &'a [Bucket],
    losses: &'a [Point],
    validation: &'a [Point],
    checkpoint: Option<&'a str>,
    sample: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<&'a Planned>,
    command: &'a str,
    version: &'a str,
    date: &'a str,
    machine: &'a str,
    settings: &'a [(String, String)],
}

/// The lines of a report.
pub fn lines(report: &Report) -> Vec<Line<'_>> {
    let line = |run| line(report, run);
    report.runs.iter().map(line).collect()
}

fn line<'a>(report: &'a Report, run: &'a super::Run) -> Line<'a> {
    Line {
        codec: &run.codec,
        ranks: report.ranks,
        link: &report.link,
        link_bytes_per_s: report.link_bytes_per_s,
        steps: run.losses.len(),
        loss: run.last_loss(),
        validation_loss: run.last_validation(),
        tokens_per_s: run.tokens_per_s,
        step_s: run.time.step_s,
        compute_s: run.floors.compute_s,
        wire_floor_s: run.floors.wire_s,
        raw_bytes_per_step: run.raw_bytes,
        sent_bytes_per_step: run.sent_bytes,
        overlap: run.overlap,
        skipped_steps: run.skipped_steps,
        time: run.time,
        buckets: &run.buckets,
        losses: &run.losses,
        validation: &run.validation,
        checkpoint: run.checkpoint.as_deref(),
        sample: &run.sample,
        planned: run.planned.as_ref(),
        command: &report.command,
        version: &report.version,
        date: &report.date,
        machine: &report.machine,
        settings: &report.settings,
    }
}
