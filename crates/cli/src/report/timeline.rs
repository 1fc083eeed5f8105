//! One step as it passes: compute above, every bucket's way below it.

use super::axis::Axis;
use super::bars::time_axis;
use super::page::escape;
use super::{Bucket, Run};
use crate::figures;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 116.0;
const RIGHT: f64 = 930.0;
const ROW: f64 = 20.0;

/// The timeline of a typical step of `run`.
pub fn timeline(run: &Run) -> String {
    let done = run.buckets.iter().map(|bucket| bucket.done_s).fold(run.time.step_s, f64::max);
    let x = Axis::new(0.0, 1e3 * done * 1.02, LEFT, RIGHT);
    let height = ROW * (run.buckets.len() + 1) as f64 + 42.0;
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"one step\">\n"
    );
    svg += &time_axis(&x, height - 26.0);
    svg += &compute_row(run, &x);
    for (index, bucket) in run.buckets.iter().enumerate() {
        svg += &bucket_row(bucket, index, &x, ROW * (index + 1) as f64 + 10.0);
    }
    svg + "</svg>\n"
}

fn compute_row(run: &Run, x: &Axis) -> String {
    let time = run.time;
    let waited = time.backward_s + time.wait_s;
    let parts = [
        ("compute", 0.0, time.backward_s, "forward and backward"),
        ("wait", time.backward_s, waited, "wait"),
        ("decode", waited, waited + time.commit_s, "decode of the result"),
        ("compute", waited + time.commit_s, time.step_s, "optimiser"),
    ];
    row("compute", 4.0) + &parts.map(|part| bar(part, x, 4.0)).concat()
}

/// Encode at its begin and decode at its end; between them the way over the wire.
fn bucket_row(bucket: &Bucket, index: usize, x: &Axis, top: f64) -> String {
    let encoded = (bucket.ready_s + bucket.encode_s).min(bucket.done_s);
    let arrived = (bucket.done_s - bucket.decode_s).max(encoded);
    let what = format!("{}: {}, {}", bucket.name, bucket.codec, bucket.algorithm);
    let parts = [
        ("encode", bucket.ready_s, encoded, what.as_str()),
        ("wire", encoded, arrived, what.as_str()),
        ("decode", arrived, bucket.done_s, what.as_str()),
    ];
    row(&format!("bucket {index}"), top) + &parts.map(|part| bar(part, x, top)).concat()
}

fn row(name: &str, top: f64) -> String {
    let (right, middle) = (LEFT - 12.0, top + 12.0);
    format!(
        "<text class=\"row small\" x=\"{right}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>\n"
    )
}

fn bar((class, from_s, to_s, what): (&str, f64, f64, &str), x: &Axis, top: f64) -> String {
    if to_s <= from_s {
        return String::new();
    }
    let (from, to) = (x.at(1e3 * from_s), x.at(1e3 * to_s));
    format!(
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"14\"><title>{} ({})</title></rect>\n",
        (to - from).max(0.5),
        escape(what),
        figures::seconds(to_s - from_s)
    )
}
