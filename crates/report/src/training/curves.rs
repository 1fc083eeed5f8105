//! Loss curves: the training loss faint, its moving average bold, validation losses as rings.

use std::fmt::Write;

use serde_json::json;

use super::values::{Point, Run};
use crate::escaping::shortened;
use crate::html::escape;
use crate::svg::{Axis, label, line, text};

/// Quantity along the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Steps, which show the accuracy that a codec costs.
    Steps,
    /// Seconds of training, which show the time that a codec saves.
    Seconds,
    /// Passes over the data.
    Passes,
}

const POINTS_MAX: usize = 400;
const TOP: f64 = 14.0;
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 38.0;
/// Pixels of a letter of a name, and the largest number of letters of a name.
const LETTER: f64 = 7.2;
const NAME_MAX: usize = 20;

/// One curve of a chart with its moving average, and single values that are drawn as rings.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Name of the run.
    pub name: String,
    /// The curve.
    pub points: Vec<Point>,
    /// Single values, such as validation losses, drawn as rings.
    pub rings: Vec<Point>,
}

impl Curve {
    /// Returns the training loss of a run, and its validation losses.
    pub fn of_loss(run: &Run) -> Curve {
        let (points, rings) = (run.losses.clone(), run.validation.clone());
        Curve { name: run.name().to_owned(), points, rings }
    }

    /// Returns the milliseconds of each step of a run.
    pub fn of_steps(run: &Run) -> Curve {
        let ends = run.losses.windows(2);
        let points =
            ends.map(|ends| Point { value: 1e3 * (ends[1].at_s - ends[0].at_s), ..ends[1] });
        Curve { name: run.name().to_owned(), points: points.collect(), rings: Vec::new() }
    }
}

/// Returns a chart called `name`, of `width` by `height` pixels, as inline SVG.
pub fn chart(name: &str, curves: &[Curve], across: Across, [width, height]: [f64; 2]) -> String {
    let longest = curves.iter().map(|curve| curve.name.chars().count()).max().unwrap_or(0);
    let right = match curves.len() {
        0 | 1 => 12.0,
        _ => 14.0 + LETTER * longest.min(NAME_MAX) as f64,
    };
    let (x, y) = axes(curves, across, [LEFT, width - right, height - BOTTOM, TOP]);
    let mut svg = format!(
        "<svg class=\"chart curves\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{name} by {}\" data-at=\"{}\" data-curves='{}'>\n",
        if across == Across::Seconds { "time" } else { across.word() },
        across.word(),
        escape(&data(curves, across, &x).to_string())
    );
    grid(&mut svg, across, &x, &y, [LEFT, width - right, height - BOTTOM, TOP]);
    for (index, one) in curves.iter().enumerate() {
        curve(&mut svg, one, across, index, &x, &y);
    }
    if curves.len() > 1 {
        names(&mut svg, curves, &y, width - right + 8.0);
    }
    svg + "<line class=\"cursor\" y1=\"14\" y2=\"14\"/></svg>\n"
}

impl Across {
    /// Returns the part of a training that ends at a point: a step or a pass.
    fn word(self) -> &'static str {
        match self {
            Across::Steps | Across::Seconds => "step",
            Across::Passes => "pass",
        }
    }

    fn of(self, point: &Point) -> f64 {
        match self {
            Across::Steps | Across::Passes => point.step as f64,
            Across::Seconds => point.at_s,
        }
    }
}

fn axes(curves: &[Curve], across: Across, [left, right, bottom, top]: [f64; 4]) -> (Axis, Axis) {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().chain(&curve.rings));
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
        Across::Steps | Across::Passes => across.word(),
        Across::Seconds => "seconds of training",
    };
    *svg += &line("axis", [left, bottom], [right, bottom], "");
    *svg += &text("axis-name", [right, bottom + 34.0], "end", name);
}

fn curve(svg: &mut String, curve: &Curve, across: Across, index: usize, x: &Axis, y: &Axis) {
    let color = color(index);
    let place = |point: &Point| (x.at(across.of(point)), y.at(point.value));
    for (class, points) in [("raw", curve.points.clone()), ("smooth", smoothed(&curve.points))] {
        let path = path(thinned(&points).iter().map(place));
        *svg += &format!("<path class=\"{class}\" stroke=\"{color}\" d=\"{path}\"/>\n");
    }
    for point in curve.rings.iter().filter(|point| point.value.is_finite()) {
        let (x, y) = place(point);
        *svg += &format!(
            "<circle class=\"validation\" stroke=\"{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>validation {:.4} at step {}</title></circle>\n",
            point.value, point.step
        );
    }
}

/// Draws the runs' names at the ends of their curves, pushed apart if they would overlap.
fn names(svg: &mut String, curves: &[Curve], y: &Axis, left: f64) {
    let mut ends: Vec<(f64, usize)> = curves
        .iter()
        .enumerate()
        .filter_map(|(index, curve)| Some((y.at(smoothed(&curve.points).last()?.value), index)))
        .collect();
    ends.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut above = f64::INFINITY;
    for (at, index) in ends {
        let at = at.min(above - 15.0);
        above = at;
        let name = escape(&shortened(&curves[index].name, NAME_MAX - 1));
        let color = color(index);
        *svg += &format!(
            "<text class=\"name\" x=\"{left}\" y=\"{:.1}\" style=\"fill:{color}\">{name}</text>\n",
            at + 4.0
        );
    }
}

/// Returns the colour of the run at `index`: a variable of the page's style.
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

/// Returns an exponential moving average over about a fortieth of the curve, corrected for its start.
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

/// Returns at most [`POINTS_MAX`] points, including the last one.
fn thinned(points: &[Point]) -> Vec<Point> {
    let every = points.len().div_ceil(POINTS_MAX).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.iter().enumerate().filter(|(index, _)| index % every == 0 || *index == last);
    kept.map(|(_, point)| *point).filter(|point| point.value.is_finite()).collect()
}

/// Returns the values that the page's script shows at the pointer.
fn data(curves: &[Curve], across: Across, x: &Axis) -> serde_json::Value {
    let series = curves.iter().enumerate().map(|(index, curve)| {
        let smooth = smoothed(&curve.points);
        let points: Vec<_> = thinned(&smooth)
            .iter()
            .map(|point| {
                let at = x.at(across.of(point));
                json!([at.round(), point.step, (point.value * 1e4).round() / 1e4])
            })
            .collect();
        json!({ "name": curve.name, "color": color(index), "points": points })
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
