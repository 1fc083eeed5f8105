//! Log of a training on rank 0, step by step, and the medians for its report.

use std::collections::{BTreeSet, VecDeque};

use thinwire_report::figures::median;
use thinwire_report::training::{Adjusted, Bucket, Change, Floors, Point, Run, Split};
use thinwire_sync::{BucketRecord, RoundRecord, StepRecord, Time};

/// Number of the last steps that are kept in detail.
const WINDOW: usize = 500;
/// Number of the last steps that count as recent.
const RECENT: usize = 20;

/// Figures of one step; times are in seconds.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Number of the step.
    pub number: u64,
    /// Time from the start of the step to its end.
    pub step_s: f64,
    /// Time of clipping and AdamW.
    pub optimizer_s: f64,
    /// Time of waiting for others.
    pub wait_s: f64,
    /// Mean loss of all ranks.
    pub loss: f64,
    /// Bytes that this rank sent.
    pub sent_bytes: u64,
    /// Record of the exchange.
    pub record: StepRecord,
    /// Whether gradients were not finite, so that the step changed nothing.
    pub skipped: bool,
    /// Rounds in which parameters were exchanged, if steps exchange no gradients.
    pub rounds: RoundRecord,
    /// Figures on which policies decide; `None` without policies.
    pub adapted: Option<Adapted>,
}

/// Figures of a step that policies change or depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Adapted {
    /// Rows of the step, all ranks together.
    pub batch: u64,
    /// Gradient noise scale in rows, once it is known and finite.
    pub noise_scale: Option<f64>,
}

/// The log of one training.
#[derive(Debug, Default)]
pub struct Log {
    pub losses: Vec<Point>,
    pub validation: Vec<Point>,
    skipped: u64,
    /// Seconds of training: only steps, without validation, checkpoints and measurements.
    pub trained_s: f64,
    steps: VecDeque<Step>,
    /// Steps before which something other than a step was done. Exchanges continued meanwhile, so these
    /// steps appear faster.
    rested: BTreeSet<u64>,
    pause: bool,
    /// Times of the computation alone, each relative to the step with which it was measured.
    alone: Vec<f64>,
    /// The last line from `auto`.
    auto: Option<String>,
    /// Changes of the members of an elastic job.
    changes: Vec<Change>,
    /// Requests of policies.
    adjusted: Vec<Adjusted>,
    /// Rounds of all steps.
    rounds: RoundRecord,
}

impl Log {
    /// Adds a step.
    pub fn step(&mut self, step: Step) {
        self.trained_s += step.step_s;
        self.skipped += u64::from(step.skipped);
        self.rounds += step.rounds;
        let planning = step.record.planning.as_ref();
        self.auto = planning.map(|planning| planning.line.clone()).or(self.auto.take());
        self.losses.push(Point { step: step.number, at_s: self.trained_s, value: step.loss });
        if std::mem::take(&mut self.pause) {
            self.rested.insert(step.number);
        }
        if self.steps.len() == WINDOW {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// Returns the bytes that this rank has sent in the last step, or per step so far if parameters are
    /// exchanged in rounds.
    pub fn sent_bytes_per_step(&self) -> f64 {
        match self.rounds.begun {
            0 => self.last().map_or(0.0, |step| step.sent_bytes as f64),
            _ => self.rounds.sent_bytes as f64 / self.losses.len() as f64,
        }
    }

    /// Adds rounds after the last step.
    pub fn exchanged(&mut self, rounds: RoundRecord) {
        self.rounds += rounds;
    }

    /// Returns the rounds of all steps together.
    pub fn rounds(&self) -> RoundRecord {
        self.rounds
    }

    /// Adds the beginning of an epoch.
    pub fn changed(&mut self, change: Change) {
        self.changes.push(change);
        self.pause();
    }

    /// Adds a request of a policy.
    pub fn adjusted(&mut self, adjusted: Adjusted) {
        self.adjusted.push(adjusted);
    }

    /// Adds a validation after `step` steps.
    pub fn validated(&mut self, step: u64, loss: f64) {
        self.validation.push(Point { step, at_s: self.trained_s, value: loss });
        self.pause();
    }

    /// Notes that something other than a step was done, during which exchanges continued.
    pub fn pause(&mut self) {
        self.pause = true;
    }

    /// Adds the time of the last step's forward and backward passes without any exchange.
    pub fn alone(&mut self, seconds: f64) {
        if let Some(step) = self.steps.back() {
            self.alone.push((seconds + step.optimizer_s) / step.step_s);
        }
    }

    /// Returns the recent seconds per step.
    pub fn recent_step_s(&self) -> f64 {
        median(
            &mut self.steps.iter().rev().take(RECENT).map(|step| step.step_s).collect::<Vec<_>>(),
        )
    }

    /// Returns the recent time per step: medians of the last 20 steps.
    pub fn recent(&self) -> Time {
        let of = |figure: &dyn Fn(&Step) -> f64| {
            median(&mut self.steps.iter().rev().take(RECENT).map(figure).collect::<Vec<_>>())
        };
        let (step_s, wait_s) = (of(&|step| step.step_s), of(&|step| step.wait_s));
        let compute_s = of(&|step| step.record.backward_s).min((step_s - wait_s).max(0.0));
        let hidden_s = of(&|step| step.record.hidden_s()).min(compute_s);
        let other_s = (step_s - compute_s - wait_s).max(0.0);
        Time { step_s, compute_s, hidden_s, wait_s, other_s }
    }

    /// Returns the last step.
    pub fn last(&self) -> Option<&Step> {
        self.steps.back()
    }

    /// Returns the seconds per step: the median of the second half.
    pub fn settled_step_s(&self) -> f64 {
        median(&mut self.settled().iter().map(|step| step.step_s).collect::<Vec<_>>())
    }

    /// Returns the seconds per step without waiting: the median of the second half.
    pub fn settled_busy_s(&self) -> f64 {
        let busy_s = |step: &Step| (step.step_s - step.wait_s).max(0.0);
        median(&mut self.settled().iter().map(busy_s).collect::<Vec<_>>())
    }

    /// Returns a warning if most steps under `codec` were skipped, or all steps of the last tenth.
    pub fn warning(&self, codec: &str) -> Option<String> {
        let (skipped, steps) = (self.skipped, self.losses.len());
        let last = steps.div_ceil(10).min(WINDOW);
        let lately = self.steps.iter().rev().take(last).all(|step| step.skipped);
        (2 * skipped > steps as u64 || skipped > 0 && lately).then(|| {
            let warning = format!(
                "warning: {skipped} of {steps} steps were skipped because gradients were not \
                 finite; lower --lr"
            );
            match codec {
                "none" => warning,
                codec => {
                    format!("{warning}, or try another codec, as {codec} may not hold gradients this large")
                }
            }
        })
    }

    /// Returns the report of this training: medians over its second half.
    pub fn run(self, codec: String, tokens_per_step: f64, link_bytes_per_s: Option<f64>) -> Run {
        let steps = self.settled();
        let of = |figure: &dyn Fn(&Step) -> f64| {
            median(&mut steps.iter().map(figure).collect::<Vec<_>>())
        };
        let total = |figure: fn(&BucketRecord) -> f64| of(&|step| step.record.total(figure));
        let (step_s, wait_s) = (of(&|step| step.step_s), of(&|step| step.wait_s));
        // Between the last byte and the commit ranks wait for each other's word on the step.
        let commit_s =
            of(&|step| (step.record.commit_s + step.record.wait_s - step.wait_s).max(0.0));
        let time = Split {
            step_s,
            compute_s: (step_s - wait_s - commit_s).max(0.0),
            encode_s: total(|bucket| bucket.encode_s),
            wire_s: of(&|step| wire_s(&step.record)),
            decode_s: total(|bucket| bucket.decode_s),
            wait_s,
            commit_s,
            backward_s: of(&|step| step.record.backward_s),
        };
        let moved = |bucket: &BucketRecord| bucket.sent_bytes.max(bucket.received_bytes) as f64;
        let floors = Floors {
            // A machine that is busy for a while slows both sides of each ratio.
            compute_s: step_s * median(&mut self.alone.clone()),
            wire_s: link_bytes_per_s.map(|rate| of(&|step| step.record.total(moved)) / rate),
        };
        Run {
            codec,
            steps: self.losses.len() as u64,
            tokens_per_s: tokens_per_step / step_s,
            time,
            floors,
            raw_bytes: total(|bucket| bucket.raw_bytes as f64),
            sent_bytes: total(|bucket| bucket.sent_bytes as f64),
            overlap: of(&|step| step.record.overlap),
            buckets: buckets(&steps),
            auto: self.auto,
            changes: self.changes,
            adjusted: self.adjusted,
            skipped_steps: self.skipped,
            losses: self.losses,
            validation: self.validation,
            ..Run::default()
        }
    }

    /// Returns the second half of the steps, in which caches are warm and `auto` has chosen. Steps that
    /// follow a pause count only if there are no others, since exchanges have continued during the pause.
    fn settled(&self) -> Vec<Step> {
        let (Some(first), Some(last)) = (self.losses.first(), self.losses.last()) else {
            return Vec::new();
        };
        let middle = first.step + (last.step - first.step).div_ceil(2);
        let late = self.steps.iter().filter(|step| step.number >= middle);
        let (rested, others): (Vec<&Step>, Vec<&Step>) =
            late.partition(|step| self.rested.contains(&step.number));
        let steps = if others.is_empty() { rested } else { others };
        steps.into_iter().cloned().collect()
    }
}

/// Returns the seconds in which bytes were under way and the exchange computed nothing.
fn wire_s(record: &StepRecord) -> f64 {
    let computed = record.total(|bucket| bucket.encode_s + bucket.decode_s);
    (record.exchange_s() - computed).max(0.0)
}

/// Returns each bucket's medians over the steps in which it travelled as in the last one.
fn buckets(steps: &[Step]) -> Vec<Bucket> {
    let Some(last) = steps.last() else { return Vec::new() };
    let bucket = |(index, now): (usize, &BucketRecord)| {
        let alike = steps.iter().filter_map(|step| step.record.buckets.get(index));
        let alike: Vec<&BucketRecord> = alike
            .filter(|then| then.codec == now.codec && then.algorithm == now.algorithm)
            .collect();
        let of = |figure: fn(&BucketRecord) -> f64| {
            median(&mut alike.iter().map(|record| figure(record)).collect::<Vec<_>>())
        };
        Bucket {
            name: now.name.clone(),
            elements: now.elements,
            codec: now.codec.clone(),
            algorithm: now.algorithm.clone(),
            raw_bytes: of(|bucket| bucket.raw_bytes as f64),
            sent_bytes: of(|bucket| bucket.sent_bytes as f64),
            ready_s: of(|bucket| bucket.ready_s),
            done_s: of(|bucket| bucket.done_s),
            encode_s: of(|bucket| bucket.encode_s),
            decode_s: of(|bucket| bucket.decode_s),
            wire_s: of(|bucket| bucket.wire_s),
            predicted_s: now.predicted_s,
        }
    };
    last.record.buckets.iter().enumerate().map(bucket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64, step_s: f64, codec: &str) -> Step {
        let bucket = BucketRecord {
            codec: codec.to_owned(),
            sent_bytes: 100,
            raw_bytes: 400,
            ready_s: 0.1,
            ..BucketRecord::default()
        };
        let (wait_s, commit_s, buckets) = (0.15, 0.1, vec![bucket]);
        let record = StepRecord { wait_s, commit_s, buckets, ..StepRecord::default() };
        Step { number, step_s, optimizer_s: 0.05, wait_s: 0.2, record, ..Step::default() }
    }

    #[test]
    fn the_second_half_counts_and_parts_add_up() {
        let mut log = Log::default();
        for number in 0..10 {
            log.step(step(number, if number < 5 { 9.0 } else { 1.0 }, "int8"));
        }
        log.alone(0.5);
        assert!((log.settled_busy_s() - 0.8).abs() < 1e-12);
        let run = log.run("int8".to_owned(), 100.0, Some(1000.0));
        assert_eq!((run.time.step_s, run.tokens_per_s), (1.0, 100.0));
        let Split { compute_s, wait_s, commit_s, step_s, .. } = run.time;
        assert!((compute_s + wait_s + commit_s - step_s).abs() < 1e-12);
        assert!((commit_s - 0.05).abs() < 1e-12, "waiting is no decoding: {commit_s}");
        assert!((run.floors.compute_s - 0.55).abs() < 1e-12);
        assert_eq!(run.floors.wire_s, Some(0.1));
        assert_eq!((run.compression(), run.buckets.len()), (4.0, 1));
    }

    #[test]
    fn steps_after_a_validation_count_where_there_are_no_others() {
        let mut log = Log::default();
        for number in 0..12 {
            log.step(step(number, if number % 2 == 0 { 1.0 } else { 2.0 }, "none"));
            assert!(number % 2 == 0 || log.settled_step_s() > 1.0);
            if number % 2 == 1 {
                log.validated(number + 1, 3.0);
            }
        }
        assert_eq!(log.settled_step_s(), 2.0);
        let mut log = Log::default();
        for number in 0..4 {
            log.pause();
            log.step(step(number, 1.0, "none"));
        }
        assert_eq!(log.settled_step_s(), 1.0);
    }

    #[test]
    fn the_time_of_a_step_is_divided_without_rest() {
        let bucket = |ready_s, done_s| BucketRecord { ready_s, done_s, ..BucketRecord::default() };
        let record = StepRecord {
            buckets: vec![bucket(0.2, 0.5), bucket(0.4, 0.9)],
            backward_s: 0.6,
            ..StepRecord::default()
        };
        let mut log = Log::default();
        log.step(Step { step_s: 1.0, wait_s: 0.3, record, ..Step::default() });
        let Time { step_s, compute_s, hidden_s, wait_s, other_s } = log.recent();
        assert_eq!((step_s, compute_s, wait_s), (1.0, 0.6, 0.3));
        assert!((hidden_s - 0.4).abs() < 1e-12 && (other_s - 0.1).abs() < 1e-12);
    }

    #[test]
    fn time_on_the_wire_is_counted_once() {
        let bucket = |ready_s, done_s| BucketRecord {
            ready_s,
            done_s,
            encode_s: 0.5,
            ..BucketRecord::default()
        };
        let buckets = vec![bucket(1.0, 4.0), bucket(3.0, 5.0), bucket(7.0, 8.0), bucket(3.5, 3.6)];
        let record = StepRecord { buckets, ..StepRecord::default() };
        assert_eq!(wire_s(&record), 4.0 + 1.0 - 4.0 * 0.5);
    }

    #[test]
    fn many_skipped_steps_and_skipped_last_ones_are_warned_of() {
        let of = |codec: &str, skipped: fn(u64) -> bool| {
            let mut log = Log::default();
            for number in 0..20 {
                log.step(Step { skipped: skipped(number), ..step(number, 1.0, "none") });
            }
            log.warning(codec)
        };
        let warning = |skipped| of("none", skipped);
        assert_eq!(warning(|_| false), None);
        assert_eq!(warning(|number| number < 10), None);
        assert_eq!(warning(|number| number == 19), None);
        assert!(warning(|number| number >= 18).unwrap().starts_with("warning: 2 of 20 steps"));
        assert!(warning(|number| number < 11).unwrap().ends_with("lower --lr"));
        assert!(of("int4", |number| number < 11).unwrap().contains("another codec, as int4"));
    }

    #[test]
    fn a_log_of_nothing_is_a_run() {
        let run = Log::default().run("none".to_owned(), 1.0, None);
        assert_eq!(Log::default().warning("none"), None);
        assert!(run.losses.is_empty() && run.buckets.is_empty());
    }
}
