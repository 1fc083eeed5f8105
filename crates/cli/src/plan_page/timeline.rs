//! The pipeline's run: a row per stage, a bar per pass.

use thinwire_plan::pipeline::{Kind, Run};
use thinwire_plan::search::{Outcome, Overlap, done_s, timeline as played};

use crate::figures;
use crate::report::axis::Axis;
use crate::report::bars::time_axis;
use crate::report::legend;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 930.0;
const ROW: f64 = 18.0;
/// Bars that a page draws at most; what comes later is left out and said.
const BARS: usize = 6000;

/// The timeline of a plan's step.
pub fn timeline(plan: &Outcome, overlap: Overlap) -> String {
    let Some(run) = played(plan, overlap) else { return String::new() };
    let done_s = done_s(plan, overlap, &run);
    let whole_s = done_s.iter().copied().fold(run.seconds, f64::max);
    let each = BARS / run.ranks.len().max(1);
    let shown = |runs: &Vec<Run>| runs.get(each).map(|run| run.start_s);
    let cut = run.ranks.iter().filter_map(shown).fold(f64::INFINITY, f64::min);
    let end = cut.min(whole_s);
    let x = Axis::new(0.0, 1e3 * end, LEFT, RIGHT);
    let height = ROW * run.ranks.len() as f64 + 38.0;
    let mut svg = legend(&[
        ("compute", "forward"),
        ("wire", "backward"),
        ("encode", "gradients of weights"),
        ("decode", "gradients travel, optimiser"),
    ]);
    svg += &format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"pipeline\">\n"
    );
    svg += &time_axis(&x, height - 26.0);
    for (rank, runs) in run.ranks.iter().enumerate() {
        let top = ROW * rank as f64 + 4.0;
        svg += &format!(
            "<text class=\"row small\" x=\"{}\" y=\"{}\" text-anchor=\"end\">stage {rank}</text>\n",
            LEFT - 10.0,
            top + 11.0
        );
        let shown = runs.iter().filter(|run| run.end_s <= cut);
        svg += &shown.map(|run| pass(run, &x, top)).collect::<String>();
        let end_s = runs.last().map_or(0.0, |run| run.end_s);
        if cut.is_infinite() && done_s[rank] > end_s {
            svg += &bar("decode", end_s, done_s[rank], "end of step", &x, top);
        }
    }
    svg += "</svg>\n";
    if cut.is_finite() {
        let whole = figures::seconds(whole_s);
        svg += &format!("<p class=\"note\">The first {} of {whole}.</p>\n", figures::seconds(cut));
    }
    svg
}

fn pass(run: &Run, x: &Axis, top: f64) -> String {
    let (class, what) = match run.pass.kind {
        Kind::Forward => ("compute", "forward"),
        Kind::Backward => ("wire", "backward"),
        Kind::Weight => ("encode", "gradients of weights"),
    };
    let what = format!("{what} of micro-batch {}, chunk {}", run.pass.micro_batch, run.pass.chunk);
    bar(class, run.start_s, run.end_s, &what, x, top)
}

fn bar(class: &str, from_s: f64, to_s: f64, what: &str, x: &Axis, top: f64) -> String {
    let (from, to) = (x.at(1e3 * from_s), x.at(1e3 * to_s));
    let (width, took) = ((to - from - 0.3).max(0.3), figures::seconds(to_s - from_s));
    format!(
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"14\"><title>{what} ({took})</title></rect>\n"
    )
}
