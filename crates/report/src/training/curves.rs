//! Loss curves: the training loss faint, its moving average bold, validation as rings.

use std::fmt::Write;

use serde_json::json;

use super::values::{Point, Run};
use crate::html::escape;
use crate::svg::{Axis, label, line, text};

/// Quantity along the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Steps: what a codec costs in accuracy.
    Steps,
    /// Seconds of training: what it gains in time.
    Seconds,
}

const POINTS_MAX: usize = 400;
const TOP: f64 = 14.0;
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 38.0;

/// A chart of `width` by `height` pixels as inline SVG.
pub fn chart(runs: &[Run], across: Across, width: f64, height: f64) -> String {
    let right = if runs.len() > 1 { 92.0 } else { 12.0 };
    let (x, y) = axes(runs, across, [LEFT, width - right, height - BOTTOM, TOP]);
    let mut svg = format!(
        "<svg class=\"chart curves\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\" data-curves='{}'>\n",
        match across {
            Across::Steps => "loss by step",
            Across::Seconds => "loss by time",
        },
        escape(&data(runs, across, &x).to_string())
    );
    grid(&mut svg, across, &x, &y, [LEFT, width - right, height - BOTTOM, TOP]);
    for (index, run) in runs.iter().enumerate() {
        curve(&mut svg, run, across, index, &x, &y);
    }
    if runs.len() > 1 {
        names(&mut svg, runs, &y, width - right + 8.0);
    }
    svg + "<line class=\"cursor\" y1=\"14\" y2=\"14\"/></svg>\n"
}

impl Across {
    fn of(self, point: &Point) -> f64 {
        match self {
            Across::Steps => point.step as f64,
            Across::Seconds => point.at_s,
        }
    }
}

fn axes(runs: &[Run], across: Across, [left, right, bottom, top]: [f64; 4]) -> (Axis, Axis) {
    let points = || runs.iter().flat_map(|run| run.losses.iter().chain(&run.validation));
    let end = points().map(|point| across.of(point)).fold(0.0, f64::max);
    let finite = || points().map(|point| point.value).filter(|value| value.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(0.0, f64::max));
    let low = if low.is_finite() { low } else { 0.0 };
    let margin = 0.04 * (high - low);
    (
        Axis::new(0.0, end, left, right),
        Axis::new((low - margin).max(0.0), high + margin, bottom, top),
    )
}

fn grid(svg: &mut String, across: Across, x: &Axis, y: &Axis, [left, right, bottom, _]: [f64; 4]) {
    let ticks = y.ticks(8);
    for tick in &ticks {
        let at = y.at(*tick);
        *svg += &line("grid", [left, at], [right, at], "");
        *svg += &text("tick", [left - 8.0, at + 4.0], "end", &label(*tick, &ticks));
    }
    let ticks = x.ticks(((right - left) / 90.0) as usize);
    for tick in &ticks {
        *svg += &text("tick", [x.at(*tick), bottom + 18.0], "middle", &label(*tick, &ticks));
    }
    let name = match across {
        Across::Steps => "step",
        Across::Seconds => "seconds of training",
    };
    *svg += &line("axis", [left, bottom], [right, bottom], "");
    *svg += &text("axis-name", [right, bottom + 34.0], "end", name);
}

fn curve(svg: &mut String, run: &Run, across: Across, index: usize, x: &Axis, y: &Axis) {
    let color = color(index);
    let place = |point: &Point| (x.at(across.of(point)), y.at(point.value));
    for (class, points) in [("raw", run.losses.clone()), ("smooth", smoothed(&run.losses))] {
        let path = path(thinned(&points).iter().map(place));
        *svg += &format!("<path class=\"{class}\" stroke=\"{color}\" d=\"{path}\"/>\n");
    }
    for point in run.validation.iter().filter(|point| point.value.is_finite()) {
        let (x, y) = place(point);
        *svg += &format!(
            "<circle class=\"validation\" stroke=\"{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>validation {:.4} at step {}</title></circle>\n",
            point.value, point.step
        );
    }
}

/// The runs' names at the ends of their curves, pushed apart where they would overlap.
fn names(svg: &mut String, runs: &[Run], y: &Axis, left: f64) {
    let mut ends: Vec<(f64, usize)> = runs
        .iter()
        .enumerate()
        .filter_map(|(index, run)| Some((y.at(smoothed(&run.losses).last()?.value), index)))
        .collect();
    ends.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut above = f64::INFINITY;
    for (at, index) in ends {
        let at = at.min(above - 15.0);
        above = at;
        let (name, color) = (escape(&runs[index].codec), color(index));
        *svg += &format!(
            "<text class=\"name\" x=\"{left}\" y=\"{:.1}\" style=\"fill:{color}\">{name}</text>\n",
            at + 4.0
        );
    }
}

/// The colour of the run at `index`: a variable of the page's style.
pub fn color(index: usize) -> String {
    format!("var(--series-{})", index % 8 + 1)
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (x, y) in points {
        let command = if path.is_empty() { 'M' } else { 'L' };
        write!(path, "{command}{x:.1} {y:.1}").expect("writing to a string cannot fail");
    }
    path
}

/// An exponential moving average over about a fortieth of the curve, corrected for its start.
fn smoothed(points: &[Point]) -> Vec<Point> {
    let keep = 1.0 - 1.0 / (1.0 + points.len() as f64 / 40.0);
    let (mut sum, mut weight) = (0.0, 0.0);
    let finite = points.iter().filter(|point| point.value.is_finite());
    finite
        .map(|point| {
            sum = keep * sum + (1.0 - keep) * point.value;
            weight = keep * weight + (1.0 - keep);
            Point { value: sum / weight, ..*point }
        })
        .collect()
}

/// At most [`POINTS_MAX`] points, the last included.
fn thinned(points: &[Point]) -> Vec<Point> {
    let every = points.len().div_ceil(POINTS_MAX).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.iter().enumerate().filter(|(index, _)| index % every == 0 || *index == last);
    kept.map(|(_, point)| *point).filter(|point| point.value.is_finite()).collect()
}

/// Returns the values that the page's script shows under the pointer.
fn data(runs: &[Run], across: Across, x: &Axis) -> serde_json::Value {
    let series = runs.iter().enumerate().map(|(index, run)| {
        let smooth = smoothed(&run.losses);
        let points: Vec<_> = thinned(&smooth)
            .iter()
            .map(|point| {
                let at = x.at(across.of(point));
                json!([at.round(), point.step, (point.value * 1e4).round() / 1e4])
            })
            .collect();
        json!({ "name": run.codec, "color": color(index), "points": points })
    });
    json!(series.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(count: u64) -> Vec<Point> {
        (0..count).map(|step| Point { step, at_s: step as f64, value: 3.0 }).collect()
    }

    #[test]
    fn a_constant_curve_stays_constant_and_long_ones_are_thinned() {
        assert!(smoothed(&points(100)).iter().all(|point| (point.value - 3.0).abs() < 1e-12));
        let thin = thinned(&points(10_001));
        assert!(thin.len() <= POINTS_MAX + 1);
        assert_eq!(thin.last().map(|point| point.step), Some(10_000));
    }
}
