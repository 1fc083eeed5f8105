//! Timeline of a training as Chrome's trace events, which Perfetto and speedscope can show.
//!
//! A training is a process of the timeline. Its first thread has the steps and the work of the rank in them,
//! and each bucket of gradients has its own thread. Laws: the file is a JSON array after every step; any two
//! events of a thread are nested or do not overlap.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};
use thinwire_report::training::Passed;
use thinwire_sync::{BucketRecord, StepRecord};

/// End of the file, before which new events are inserted.
const END: &str = "\n]\n";

/// One event, as Chrome's trace event format describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceEvent {
    name: String,
    /// `X` for a span, `M` for the name of a process or a thread.
    ph: char,
    /// Start of the event, in microseconds since the start of the timeline.
    ts: u64,
    /// Duration of a span in microseconds.
    dur: u64,
    /// Number of the training.
    pid: usize,
    /// 0 for the step, otherwise the number of the bucket plus 1.
    tid: usize,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

/// File of a timeline that is being written.
#[derive(Debug)]
pub struct Timeline {
    file: BufWriter<File>,
    is_empty: bool,
    begun: Instant,
    lanes: Lanes,
}

/// Threads of one training.
#[derive(Debug, Default)]
struct Lanes {
    pid: usize,
    codec: String,
    /// Number of threads that have names.
    named: usize,
    /// End of the last step in microseconds.
    ended: u64,
}

impl Timeline {
    /// Continues the timeline at a path after `trainings` trainings. The first training creates the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(path: &Path, codec: &str, trainings: usize) -> io::Result<Timeline> {
        let mut options = File::options();
        let mut file = options.create(true).write(true).truncate(trainings == 0).open(path)?;
        if trainings == 0 {
            write!(file, "[{END}")?;
        }
        let is_empty = file.metadata()?.len() <= 1 + END.len() as u64;
        let (file, codec) = (BufWriter::new(file), codec.to_owned());
        let lanes = Lanes { pid: trainings, codec, ..Lanes::default() };
        Ok(Timeline { file, is_empty, begun: Instant::now(), lanes })
    }

    /// Adds a step that took `step_s` seconds and has just ended.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn step(&mut self, record: &StepRecord, passes: &[Passed], step_s: f64) -> io::Result<()> {
        let end_s = self.begun.elapsed().as_secs_f64();
        self.file.seek(SeekFrom::End(-(END.len() as i64)))?;
        for event in self.lanes.step(record, passes, [end_s - step_s, end_s]) {
            let comma = if std::mem::take(&mut self.is_empty) { "" } else { "," };
            write!(self.file, "{comma}\n{}", serde_json::to_string(&event)?)?;
        }
        self.file.write_all(END.as_bytes())?;
        self.file.flush()
    }
}

impl Lanes {
    /// Returns the events of a step between two times, and the names of new threads.
    fn step(
        &mut self,
        record: &StepRecord,
        passes: &[Passed],
        [begin_s, end_s]: [f64; 2],
    ) -> Vec<TraceEvent> {
        let mut events = self.names(record.buckets.len() + 1);
        let begin = micros(begin_s).max(self.ended);
        let end = micros(end_s).max(begin);
        self.ended = end;
        let mut lane = Lane { pid: self.pid, tid: 0, begin, end, at: begin, events: Vec::new() };
        lane.whole(format!("step {}", record.step), Value::Null);
        match passes {
            [] => lane.then("forward and backward", record.backward_s),
            passes => lane.passes(passes),
        }
        lane.then("wait for the exchange", lane.since_begin_s() + record.wait_s);
        lane.then("decode of the result", lane.since_begin_s() + record.commit_s);
        events.append(&mut lane.events);
        for (index, bucket) in record.buckets.iter().enumerate() {
            let tid = index + 1;
            let mut lane = Lane { tid, at: begin, events: Vec::new(), ..lane };
            lane.bucket(bucket);
            events.append(&mut lane.events);
        }
        events
    }

    /// Returns the names of all unnamed threads up to `threads`.
    fn names(&mut self, threads: usize) -> Vec<TraceEvent> {
        let pid = self.pid;
        let name = |what: &str, tid: usize, name: String| TraceEvent {
            name: what.to_owned(),
            ph: 'M',
            ts: 0,
            dur: 0,
            pid,
            tid,
            args: json!({ "name": name }),
        };
        let mut events = Vec::new();
        if self.named == 0 {
            events.push(name("process_name", 0, format!("codec {}", self.codec)));
        }
        for tid in self.named..threads {
            let thread = if tid == 0 { "step".to_owned() } else { format!("bucket {}", tid - 1) };
            events.push(name("thread_name", tid, thread));
        }
        self.named = self.named.max(threads);
        events
    }
}

/// Events of one thread in one step.
#[derive(Clone, Debug)]
struct Lane {
    pid: usize,
    tid: usize,
    begin: u64,
    end: u64,
    /// End of the last event within the step.
    at: u64,
    events: Vec<TraceEvent>,
}

impl Lane {
    /// Adds an event between two times, unless its duration is 0.
    fn push(&mut self, name: String, [from, to]: [u64; 2], args: Value) {
        if to > from {
            let (ts, dur, pid, tid) = (from, to - from, self.pid, self.tid);
            self.events.push(TraceEvent { name, ph: 'X', ts, dur, pid, tid, args });
        }
    }

    /// Adds an event that lasts for the whole step.
    fn whole(&mut self, name: String, args: Value) {
        self.push(name, [self.begin, self.end], args);
    }

    /// Adds an event that follows the last one and ends `until_s` seconds after the step's start.
    fn then(&mut self, name: &str, until_s: f64) {
        let from = self.at;
        self.at = self.time(until_s).max(from);
        self.push(name.to_owned(), [from, self.at], Value::Null);
    }

    /// Adds passes under a plan; the first pass begins with the step. The wait of a pass is shown at its
    /// start.
    fn passes(&mut self, passes: &[Passed]) {
        let zero_s = passes.first().map_or(0.0, |pass| pass.start_s);
        for pass in passes {
            let Passed { kind, chunk, micro_batch, start_s, end_s, waited_s } = *pass;
            let from = self.time(start_s - zero_s).max(self.at);
            let waited = self.time(start_s - zero_s + waited_s).max(from);
            let to = self.time(end_s - zero_s).max(from);
            let args = json!({ "chunk": chunk, "micro_batch": micro_batch });
            self.push(format!("{kind:?} {micro_batch}"), [from, to], args);
            self.push("waits for others".to_owned(), [from, waited.min(to)], Value::Null);
            self.at = to;
        }
    }

    /// Adds the exchange of a bucket, with its encoding at the start and its decoding at the end.
    fn bucket(&mut self, bucket: &BucketRecord) {
        let [from, to] = [bucket.ready_s, bucket.done_s].map(|at_s| self.time(at_s));
        let encoded = self.time(bucket.ready_s + bucket.encode_s).min(to).max(from);
        let arrived = self.time(bucket.done_s - bucket.decode_s).min(to).max(encoded);
        let BucketRecord { codec, algorithm, .. } = bucket;
        let args = json!({
            "parameters": bucket.name,
            "raw_bytes": bucket.raw_bytes,
            "sent_bytes": bucket.sent_bytes,
            "received_bytes": bucket.received_bytes,
        });
        self.push(format!("{codec} {algorithm}"), [from, to], args);
        self.push("encode".to_owned(), [from, encoded], Value::Null);
        self.push("decode".to_owned(), [arrived, to], Value::Null);
    }

    /// Returns the time that is `since_begin_s` seconds after the step's start, or the step's end if that is
    /// earlier.
    fn time(&self, since_begin_s: f64) -> u64 {
        self.begin.saturating_add(micros(since_begin_s)).min(self.end)
    }

    fn since_begin_s(&self) -> f64 {
        (self.at - self.begin) as f64 / 1e6
    }
}

/// Returns a time in whole microseconds; 0 if it is negative or NaN.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_plan::pipeline::Kind;

    use super::*;

    /// Returns whether any two events of a thread are nested or do not overlap, in the order of the list.
    fn is_nested(events: &[TraceEvent]) -> bool {
        let threads = events.iter().map(|event| (event.pid, event.tid));
        threads.collect::<std::collections::BTreeSet<_>>().into_iter().all(|thread| {
            let mut open: Vec<u64> = Vec::new();
            let mut of_thread =
                events.iter().filter(|it| it.ph == 'X' && (it.pid, it.tid) == thread);
            of_thread.all(|event| {
                open.retain(|end| *end > event.ts);
                let is_inside = open.last().is_none_or(|end| event.ts + event.dur <= *end);
                open.push(event.ts + event.dur);
                is_inside
            })
        })
    }

    prop_compose! {
        fn bucket()(times in prop::array::uniform4(-0.5_f64..3.0)) -> BucketRecord {
            let [ready_s, done_s, encode_s, decode_s] = times;
            BucketRecord { ready_s, done_s, encode_s, decode_s, ..BucketRecord::default() }
        }
    }

    prop_compose! {
        fn record()(
            buckets in prop::collection::vec(bucket(), 0..4),
            [backward_s, wait_s, commit_s] in prop::array::uniform3(-0.5_f64..3.0),
        ) -> StepRecord {
            StepRecord { buckets, backward_s, wait_s, commit_s, ..StepRecord::default() }
        }
    }

    prop_compose! {
        fn passed()([start_s, end_s, waited_s] in prop::array::uniform3(-2.0_f64..2.0)) -> Passed {
            Passed { kind: Kind::Forward, chunk: 0, micro_batch: 1, start_s, end_s, waited_s }
        }
    }

    proptest! {
        #[test]
        fn events_of_a_thread_are_inside_each_other_or_apart(
            steps in prop::collection::vec((record(), 0.0_f64..2.0, 0.0_f64..2.0), 1..5),
            passes in prop::collection::vec(passed(), 0..4),
        ) {
            let (mut lanes, mut now_s, mut events) = (Lanes::default(), 0.0, Vec::new());
            for (record, step_s, pause_s) in steps {
                now_s += pause_s;
                events.extend(lanes.step(&record, &passes, [now_s - step_s, now_s]));
            }
            prop_assert!(is_nested(&events), "{events:#?}");
        }
    }

    #[test]
    fn a_step_is_its_parts_and_a_thread_for_each_bucket() {
        let bucket = BucketRecord {
            codec: "int8".to_owned(),
            algorithm: "two-shot".to_owned(),
            ready_s: 0.3,
            done_s: 0.7,
            encode_s: 0.05,
            decode_s: 0.1,
            ..BucketRecord::default()
        };
        let (backward_s, wait_s, commit_s) = (0.5, 0.2, 0.1);
        let buckets = vec![bucket];
        let record = StepRecord { buckets, backward_s, wait_s, commit_s, ..StepRecord::default() };
        let events = Lanes::default().step(&record, &[], [1.0, 2.0]);
        let spans = events.iter().filter(|event| event.ph == 'X');
        let spans: Vec<_> =
            spans.map(|event| (event.tid, &event.name[..], event.ts, event.dur)).collect();
        let expected = [
            (0, "step 0", 1_000_000, 1_000_000),
            (0, "forward and backward", 1_000_000, 500_000),
            (0, "wait for the exchange", 1_500_000, 200_000),
            (0, "decode of the result", 1_700_000, 100_000),
            (1, "int8 two-shot", 1_300_000, 400_000),
            (1, "encode", 1_300_000, 50_000),
            (1, "decode", 1_600_000, 100_000),
        ];
        assert_eq!(spans, expected);
    }

    #[test]
    fn a_file_is_whole_after_every_step_of_every_training() {
        let path = std::env::temp_dir().join(format!("thinwire-timeline-{}", std::process::id()));
        for training in 0..2 {
            let mut timeline = Timeline::open(&path, "int8", training).unwrap();
            for _ in 0..2 {
                timeline.step(&StepRecord::default(), &[], 1e-3).unwrap();
                let text = std::fs::read_to_string(&path).unwrap();
                let events: Vec<Value> = serde_json::from_str(&text).unwrap();
                for event in &events {
                    assert!(event["name"].is_string() && event["ts"].is_u64(), "{event}");
                    assert!(event["dur"].is_u64() && event["tid"].is_u64(), "{event}");
                    assert!(["X", "M"].map(Value::from).contains(&event["ph"]), "{event}");
                }
                let pids: Vec<_> = events.iter().map(|event| event["pid"].as_u64()).collect();
                assert_eq!(pids.last(), Some(&Some(training as u64)));
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
