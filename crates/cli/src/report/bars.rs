//! Bars: where a step's time goes, and how many bytes a bucket sends.

use super::axis::{Axis, label};
use super::html::escape;
use super::values::{Bucket, Run, Split};
use crate::figures;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 116.0;
const RIGHT: f64 = 930.0;
/// From here on an axis counts seconds.
const SECONDS_FROM_MS: f64 = 3000.0;

/// Per run two bars: the step as it passed, and below it what the communication thread did.
pub fn step_time(runs: &[Run]) -> String {
    let row = 74.0;
    let height = row * runs.len() as f64 + 34.0;
    let ends =
        runs.iter().map(|run| run.time.step_s.max(run.floors.larger_s()).max(busy_s(&run.time)));
    let x = Axis::new(0.0, 1e3 * ends.fold(0.0, f64::max) * 1.02, LEFT, RIGHT);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"step time\">\n"
    );
    svg += &time_axis(&x, height - 26.0);
    for (index, run) in runs.iter().enumerate() {
        svg += &step_row(run, &x, row * index as f64 + 8.0);
    }
    svg + "</svg>\n"
}

/// The wall time of a step, its floors, and the work beside it.
fn step_row(run: &Run, x: &Axis, top: f64) -> String {
    let Split { compute_s, wait_s, commit_s, encode_s, wire_s, decode_s, step_s, .. } = run.time;
    let alone = run.floors.compute_s.min(compute_s);
    let slowed = compute_s - alone;
    let wall = [
        ("compute", alone, "compute"),
        ("slowed", slowed, "compute slowed by the exchange beside it"),
        ("wait", wait_s, "wait"),
        ("decode", commit_s, "decode of the result"),
    ];
    let beside =
        [("encode", encode_s, "encode"), ("wire", wire_s, "wire"), ("decode", decode_s, "decode")];
    let name = escape(&run.codec);
    let mut svg = format!(
        "<text class=\"row\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\n",
        LEFT - 12.0,
        top + 19.0
    );
    svg += &stack(&wall, x, top, 28.0);
    svg += &stack(&beside, x, top + 32.0, 12.0);
    let end = x.at(1e3 * step_s);
    let (at, anchor) = if end > RIGHT - 80.0 { (end - 6.0, "end") } else { (end + 6.0, "start") };
    svg += &format!(
        "<text class=\"value\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>\n",
        top + 19.0,
        figures::seconds(step_s)
    );
    svg += &floor(run.floors.compute_s, "compute alone", "floor", x, top);
    if let Some(wire_s) = run.floors.wire_s {
        svg += &floor(wire_s, "bytes over bandwidth", "floor dashed", x, top);
    }
    svg
}

fn floor(at_s: f64, what: &str, class: &str, x: &Axis, top: f64) -> String {
    let at = x.at(1e3 * at_s);
    format!(
        "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\"><title>{what}: {}</title></line>\n",
        top - 5.0,
        top + 48.0,
        figures::seconds(at_s)
    )
}

fn stack(parts: &[(&str, f64, &str)], x: &Axis, top: f64, height: f64) -> String {
    let (mut svg, mut begin) = (String::new(), 0.0);
    for (class, seconds, what) in parts.iter().filter(|(_, seconds, _)| *seconds > 0.0) {
        let (from, to) = (x.at(1e3 * begin), x.at(1e3 * (begin + seconds)));
        begin += seconds;
        svg += &format!(
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{height}\"><title>{what}: {}</title></rect>\n",
            (to - from).max(0.5),
            figures::seconds(*seconds)
        );
    }
    svg
}

/// Milliseconds along the bottom, or seconds where they are many.
pub fn time_axis(x: &Axis, bottom: f64) -> String {
    let (ticks, mut svg) = (x.ticks(8), String::new());
    let (scale, unit) = match ticks.last() {
        Some(last) if *last >= SECONDS_FROM_MS => (1e-3, "s"),
        _ => (1.0, "ms"),
    };
    let shown: Vec<f64> = ticks.iter().map(|tick| scale * tick).collect();
    for (tick, value) in ticks.iter().zip(&shown) {
        let (at, text) = (x.at(*tick), label(*value, &shown));
        svg += &format!(
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{bottom}\"/><text class=\"tick\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>\n",
            bottom + 16.0
        );
    }
    svg + &format!(
        "<text class=\"axis-name\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{unit}</text>\n",
        WIDTH - 2.0,
        bottom + 16.0
    )
}

fn busy_s(time: &Split) -> f64 {
    time.encode_s + time.wire_s + time.decode_s
}

/// A bar per bucket: its bytes as f32 as an outline, what was sent filled in.
pub fn bucket_bytes(buckets: &[Bucket]) -> String {
    let row = 30.0;
    let (left, right) = (300.0, 700.0);
    let most =
        buckets.iter().map(|bucket| bucket.raw_bytes.max(bucket.sent_bytes)).fold(0.0, f64::max);
    let x = Axis::new(0.0, most, left, right);
    let height = row * buckets.len() as f64 + 4.0;
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"bytes per bucket\">\n"
    );
    for (index, bucket) in buckets.iter().enumerate() {
        let top = row * index as f64 + 4.0;
        let (raw, sent) =
            (x.at(bucket.raw_bytes) - left, (x.at(bucket.sent_bytes) - left).max(1.0));
        let (name, middle) = (escape(&shortened(&bucket.name)), top + 15.0);
        svg += &format!(
            "<text class=\"row small\" x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>\n",
            left - 12.0
        );
        svg += &format!(
            "<rect class=\"ghost\" x=\"{left}\" y=\"{top}\" width=\"{raw:.1}\" height=\"20\" rx=\"2\"/>"
        );
        svg += &format!(
            "<rect class=\"wire\" x=\"{left}\" y=\"{top}\" width=\"{sent:.1}\" height=\"20\" rx=\"2\"/>\n"
        );
        svg += &format!(
            "<text class=\"value small\" x=\"{}\" y=\"{middle}\">{} of {} · {} · {}</text>\n",
            right + 12.0,
            figures::bytes(bucket.sent_bytes),
            figures::bytes(bucket.raw_bytes),
            escape(&bucket.codec),
            escape(&bucket.algorithm)
        );
    }
    svg + "</svg>\n"
}

/// A name that fits beside its bar: its beginning and its end.
fn shortened(name: &str) -> String {
    const LENGTH: usize = 42;
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= LENGTH {
        return name.to_owned();
    }
    let half = LENGTH / 2 - 1;
    let begin: String = letters[..half].iter().collect();
    let end: String = letters[letters.len() - half..].iter().collect();
    format!("{}…{}", begin.trim_end(), end.trim_start())
}
