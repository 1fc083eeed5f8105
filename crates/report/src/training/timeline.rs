//! Timeline of one step: the computation on top, each bucket's exchange below it; under a plan, every
//! rank.

use super::values::{Bucket, Passed, Planned, PlannedRank, Run};
use crate::gantt::{Bar, PASSES, Row, gantt, pass};
use crate::html::legend;

/// Returns the timeline of a typical step of `run`; under a plan, of the last step.
pub fn timeline(run: &Run) -> String {
    if let Some(planned) = &run.planned {
        return of_ranks(planned);
    }
    let done = run.buckets.iter().map(|bucket| bucket.done_s).fold(run.time.step_s, f64::max);
    let buckets = run.buckets.iter().enumerate().map(|(index, bucket)| way(bucket, index));
    let rows: Vec<Row> = std::iter::once(compute(run)).chain(buckets).collect();
    gantt("one step", &rows, 1.02 * done)
}

fn bar(class: &'static str, from_s: f64, to_s: f64, what: &str) -> Bar {
    Bar { class, from_s, to_s, what: what.to_owned() }
}

fn compute(run: &Run) -> Row {
    let time = run.time;
    let waited = time.backward_s + time.wait_s;
    let bars = vec![
        bar("compute", 0.0, time.backward_s, "forward and backward"),
        bar("wait", time.backward_s, waited, "wait"),
        bar("decode", waited, waited + time.commit_s, "decode of the result"),
        bar("compute", waited + time.commit_s, time.step_s, "optimiser"),
    ];
    Row { name: "compute".to_owned(), bars }
}

/// Returns the row of a bucket: encoding at its beginning, decoding at its end, and the wire between
/// them.
fn way(bucket: &Bucket, index: usize) -> Row {
    let encoded = (bucket.ready_s + bucket.encode_s).min(bucket.done_s);
    let arrived = (bucket.done_s - bucket.decode_s).max(encoded);
    let what = format!("{}: {}, {}", bucket.name, bucket.codec, bucket.algorithm);
    let bars = vec![
        bar("encode", bucket.ready_s, encoded, &what),
        bar("wire", encoded, arrived, &what),
        bar("decode", arrived, bucket.done_s, &what),
    ];
    Row { name: format!("bucket {index}"), bars }
}

/// Returns the last step of a planned training.
fn of_ranks(planned: &Planned) -> String {
    let rows: Vec<Row> = planned.ranks.iter().map(of_rank).collect();
    let end_s = planned.ranks.iter().map(|rank| rank.end_s).fold(0.0, f64::max);
    let ends = [("wait", "waits for others"), ("decode", "gradients arrive, optimiser")];
    legend(&[&PASSES[..], &ends[..]].concat()) + &gantt("the last step", &rows, end_s)
}

/// Returns the row of a rank. Waiting within a pass is drawn at the beginning of the pass.
fn of_rank(rank: &PlannedRank) -> Row {
    let of_pass = |one: &Passed| {
        let (class, what) = pass(one.kind, one.micro_batch, one.chunk);
        let begun_s = (one.start_s + one.waited_s).min(one.end_s);
        let waits = bar("wait", one.start_s, begun_s, &format!("{what}: waits"));
        [waits, Bar { class, from_s: begun_s, to_s: one.end_s, what }]
    };
    let last_s = rank.passed.last().map_or(rank.end_s, |pass| pass.end_s);
    let end = bar("decode", last_s, rank.end_s, "gradients arrive, optimiser");
    let bars = rank.passed.iter().flat_map(of_pass).chain([end]).collect();
    Row { name: format!("rank {}", rank.rank), bars }
}
