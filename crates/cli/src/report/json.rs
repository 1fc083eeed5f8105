//! A report as JSON: one line per training, the figures first.

use serde::Serialize;

use super::{Report, Run};

/// One training. Seconds, bytes, nats per byte or per image.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    steps: u64,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    step_s: f64,
    #[serde(flatten)]
    run: &'a Run,
    #[serde(flatten)]
    report: &'a Report,
}

/// The lines of a report.
pub fn lines(report: &Report) -> Vec<Line<'_>> {
    report.runs.iter().map(|run| line(report, run)).collect()
}

fn line<'a>(report: &'a Report, run: &'a Run) -> Line<'a> {
    Line {
        steps: run.steps,
        loss: run.last_loss(),
        validation_loss: run.last_validation(),
        step_s: run.time.step_s,
        run,
        report,
    }
}
