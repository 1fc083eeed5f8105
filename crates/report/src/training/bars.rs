//! Bars: the parts of a step's time, and the bytes that a bucket sends.

use super::values::{Bucket, Run, Split};
use crate::escaping::shortened;
use crate::figures;
use crate::svg::{Axis, drawing, line, rect, text, time_axis};

const LEFT: f64 = 116.0;
const RIGHT: f64 = 930.0;
/// Letters of a name for which there is room.
const NAME_MAX: usize = 14;

/// Returns two bars per run: the step as it passed, and below it the work of the communication thread.
pub fn step_time(runs: &[Run]) -> String {
    let row = 74.0;
    let height = row * runs.len() as f64 + 34.0;
    let ends =
        runs.iter().map(|run| run.time.step_s.max(run.floors.larger_s()).max(busy_s(&run.time)));
    let x = Axis::new(0.0, 1e3 * ends.fold(0.0, f64::max) * 1.02, LEFT, RIGHT);
    let rows = runs.iter().enumerate().map(|(at, run)| step_row(run, &x, row * at as f64 + 8.0));
    drawing("step time", height, &(time_axis(&x, height - 26.0) + &rows.collect::<String>()))
}

/// Draws the wall time of a step, its floors, and the work of the communication thread.
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
    let mut svg = text("row", [LEFT - 12.0, top + 19.0], "end", &shortened(run.name(), NAME_MAX));
    svg += &stack(&wall, x, top, 28.0);
    svg += &stack(&beside, x, top + 32.0, 12.0);
    let end = x.at(1e3 * step_s);
    let (at, anchor) = if end > RIGHT - 80.0 { (end - 6.0, "end") } else { (end + 6.0, "start") };
    svg += &text("value", [at, top + 19.0], anchor, &figures::seconds(step_s));
    svg += &floor(run.floors.compute_s, "compute alone", "floor", x, top);
    if let Some(wire_s) = run.floors.wire_s {
        svg += &floor(wire_s, "bytes over bandwidth", "floor dashed", x, top);
    }
    svg
}

fn floor(at_s: f64, what: &str, class: &str, x: &Axis, top: f64) -> String {
    let at = x.at(1e3 * at_s);
    let title = format!("{what}: {}", figures::seconds(at_s));
    line(class, [at, top - 5.0], [at, top + 48.0], &title)
}

fn stack(parts: &[(&str, f64, &str)], x: &Axis, top: f64, height: f64) -> String {
    let (mut svg, mut begin) = (String::new(), 0.0);
    for (class, seconds, what) in parts.iter().filter(|(_, seconds, _)| *seconds > 0.0) {
        let (from, to) = (x.at(1e3 * begin), x.at(1e3 * (begin + seconds)));
        begin += seconds;
        let title = format!("{what}: {}", figures::seconds(*seconds));
        svg += &rect(class, [from, top, (to - from).max(0.5), height], &title);
    }
    svg
}

fn busy_s(time: &Split) -> f64 {
    time.encode_s + time.wire_s + time.decode_s
}

/// Returns a bar per bucket: an outline for its bytes as f32, filled with the bytes that were sent.
pub fn bucket_bytes(buckets: &[Bucket]) -> String {
    let row = 30.0;
    let (left, right) = (300.0, 700.0);
    let most =
        buckets.iter().map(|bucket| bucket.raw_bytes.max(bucket.sent_bytes)).fold(0.0, f64::max);
    let x = Axis::new(0.0, most, left, right);
    let bar = |(index, bucket): (usize, &Bucket)| {
        let (top, bytes) = (row * index as f64 + 4.0, figures::bytes);
        let [raw, sent] = [bucket.raw_bytes, bucket.sent_bytes].map(|bytes| x.at(bytes) - left);
        let (name, middle) = (both_ends(&bucket.name), top + 15.0);
        let amounts = format!("{} of {}", bytes(bucket.sent_bytes), bytes(bucket.raw_bytes));
        let Bucket { codec, algorithm, .. } = bucket;
        [
            text("row small", [left - 12.0, middle], "end", &name),
            rect("ghost", [left, top, raw, 20.0], "as f32"),
            rect("wire", [left, top, sent.max(1.0), 20.0], "as sent"),
            text(
                "value small",
                [right + 12.0, middle],
                "start",
                &format!("{amounts} · {codec} · {algorithm}"),
            ),
        ]
        .concat()
    };
    let bars: String = buckets.iter().enumerate().map(bar).collect();
    drawing("bytes per bucket", row * buckets.len() as f64 + 4.0, &bars)
}

/// Returns a name that fits next to its bar: its beginning and its end.
fn both_ends(name: &str) -> String {
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
