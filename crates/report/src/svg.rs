//! Drawings as inline SVG with the classes of the page's style, and axes with round ticks.

use crate::html::escape;

/// Pixels of a drawing's width.
pub const WIDTH: f64 = 960.0;
/// Milliseconds from which on an axis counts seconds.
const SECONDS_FROM_MS: f64 = 3000.0;

/// A linear map from a range of values to a range of pixels.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Maps `low..high` to the pixels `from..to`; an empty range is widened.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        Axis { low, high, from, to }
    }

    /// Returns the pixel of a value, within the axis.
    pub fn at(&self, value: f64) -> f64 {
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + part * (self.to - self.from)
    }

    /// Returns about `count` round values on the axis.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let step = round_step((self.high - self.low) / count.max(1) as f64);
        let first = (self.low / step - 1e-9).ceil();
        let last = (self.high / step + 1e-9).floor();
        (0..=(last - first) as usize).map(|index| (first + index as f64) * step).collect()
    }
}

/// Returns 1, 2 or 5 times a power of ten, not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Returns a tick's label, with no more decimals than its step needs.
pub fn label(tick: f64, ticks: &[f64]) -> String {
    let step = match ticks {
        [first, second, ..] => second - first,
        _ => tick.abs().max(1.0),
    };
    let decimals = (-(step * 1.001).log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{tick:.decimals$}")
}

/// Returns an axis along the bottom, in milliseconds, or in seconds for long times.
pub fn time_axis(x: &Axis, bottom: f64) -> String {
    let (ticks, mut svg) = (x.ticks(8), String::new());
    let (scale, unit) = match ticks.last() {
        Some(last) if *last >= SECONDS_FROM_MS => (1e-3, "s"),
        _ => (1.0, "ms"),
    };
    let shown: Vec<f64> = ticks.iter().map(|tick| scale * tick).collect();
    for (tick, value) in ticks.iter().zip(&shown) {
        let at = x.at(*tick);
        svg += &line("grid", [at, 0.0], [at, bottom], "");
        svg += &text("tick", [at, bottom + 16.0], "middle", &label(*value, &shown));
    }
    svg + &text("axis-name", [WIDTH - 2.0, bottom + 16.0], "end", unit)
}

/// Returns a drawing called `name`.
pub fn drawing(name: &str, height: f64, body: &str) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{name}\">\n{body}</svg>\n"
    )
}

/// Returns a bar with this position, width and height, and a text that the pointer shows.
pub fn rect(class: &str, [x, y, width, height]: [f64; 4], title: &str) -> String {
    let title = escape(title);
    format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"><title>{title}</title></rect>\n"
    )
}

/// Returns a text whose start, middle or end is at x.
pub fn text(class: &str, [x, y]: [f64; 2], anchor: &str, text: &str) -> String {
    let text = escape(text);
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
    )
}

/// Returns a line from one point to another.
pub fn line(class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], title: &str) -> String {
    let title =
        if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
    format!(
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\">{title}</line>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        let axis = Axis::new(0.0, 300.0, 0.0, 600.0);
        assert_eq!(axis.ticks(6), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0, 300.0]);
        let ticks = Axis::new(1.93, 4.2, 0.0, 1.0).ticks(4);
        assert_eq!(ticks, [2.0, 3.0, 4.0]);
        assert_eq!(label(ticks[0], &ticks), "2");
        let ticks = Axis::new(0.0, 0.43, 0.0, 1.0).ticks(4);
        assert_eq!(
            ticks.iter().map(|tick| label(*tick, &ticks)).collect::<Vec<_>>(),
            ["0.0", "0.2", "0.4"]
        );
    }

    #[test]
    fn values_keep_to_the_axis() {
        let axis = Axis::new(0.0, 10.0, 100.0, 0.0);
        assert_eq!((axis.at(0.0), axis.at(5.0), axis.at(99.0)), (100.0, 50.0, 0.0));
        assert!(Axis::new(3.0, 3.0, 0.0, 1.0).at(3.0).is_finite());
    }
}
