//! The pipeline's run: a row per stage, a bar per pass.

use thinwire_plan::pipeline::Run;
use thinwire_plan::search::{Outcome, Overlap, done_s, timeline as played};

use crate::report::{Bar, PASSES, Row, gantt, legend, pass};

/// Work that follows the last pass.
const END: (&str, &str) = ("decode", "gradients travel, optimiser");

/// The timeline of a plan's step.
pub fn timeline(plan: &Outcome, overlap: Overlap) -> String {
    let Some(run) = played(plan, overlap) else { return String::new() };
    let done_s = done_s(plan, overlap, &run);
    let whole_s = done_s.iter().copied().fold(run.seconds, f64::max);
    let stage = |(rank, (runs, done_s)): (usize, (&Vec<Run>, &f64))| {
        let (class, what) = END;
        let from_s = runs.last().map_or(0.0, |run| run.end_s);
        let end = Bar { class, from_s, to_s: *done_s, what: what.to_owned() };
        let bars = runs.iter().map(bar).chain([end]).collect();
        Row { name: format!("stage {rank}"), bars }
    };
    let rows: Vec<Row> = run.ranks.iter().zip(&done_s).enumerate().map(stage).collect();
    legend(&[&PASSES[..], &[END]].concat()) + &gantt("pipeline", &rows, whole_s)
}

fn bar(run: &Run) -> Bar {
    let (class, what) = pass(run.pass.kind, run.pass.micro_batch, run.pass.chunk);
    Bar { class, from_s: run.start_s, to_s: run.end_s, what }
}
