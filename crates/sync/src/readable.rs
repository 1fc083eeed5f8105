//! Plans and records as text for people; programs read the JSON.

use std::fmt;

use crate::{Assignment, BucketRecord, Plan, StepRecord};

/// `int8 by two-shot in 2 parts`.
impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Assignment { codec, algorithm, partitions } = self;
        let part = if *partitions == 1 { "part" } else { "parts" };
        write!(f, "{codec} by {algorithm} in {partitions} {part}")
    }
}

/// The predicted time of a step, if known, then a line for each bucket.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buckets", self.assignments.len())?;
        if self.iteration_s > 0.0 {
            let (planned, raw) = (ms(self.iteration_s), ms(self.raw_iteration_s));
            write!(f, ", a step should take {planned}, raw {raw}")?;
        }
        for (bucket, assignment) in self.assignments.iter().enumerate() {
            write!(f, "\n{bucket:4}  {assignment}")?;
            match self.predicted_s.get(bucket) {
                Some(seconds) if *seconds > 0.0 => write!(f, ", {}", ms(*seconds))?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// `weight: int8 by two-shot in 2 parts, 1.2 to 3.4 ms, sent 0.50 of 2.00 MB`.
impl fmt::Display for BucketRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BucketRecord { name, codec, algorithm, partitions, .. } = self;
        let way = Assignment {
            codec: codec.clone(),
            algorithm: algorithm.clone(),
            partitions: *partitions,
        };
        let (ready, done) = (self.ready_s * 1e3, ms(self.done_s));
        let (sent, raw) = (self.sent_bytes as f64 / 1e6, self.raw_bytes as f64 / 1e6);
        write!(f, "{name}: {way}, {ready:.1} to {done}, sent {sent:.2} of {raw:.2} MB")
    }
}

/// The parts of a step's time, then a line for each bucket.
impl fmt::Display for StepRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepRecord { step, buckets, backward_s, wait_s, commit_s, overlap, .. } = self;
        let (backward, wait, commit) = (ms(*backward_s), ms(*wait_s), ms(*commit_s));
        write!(f, "step {step}: backward {backward}, wait {wait}, commit {commit}, ")?;
        write!(f, "{:.0} % of the exchange hidden", overlap * 100.0)?;
        buckets.iter().try_for_each(|bucket| write!(f, "\n  {bucket}"))
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_a_line_for_each_bucket() {
        let assignment = |codec: &str, partitions| {
            let (codec, algorithm) = (codec.to_owned(), "two-shot".to_owned());
            Assignment { codec, algorithm, partitions }
        };
        let mut plan = Plan {
            assignments: vec![assignment("int8", 2), assignment("none", 1)],
            predicted_s: vec![0.0; 2],
            ..Plan::default()
        };
        let ways = ["int8 by two-shot in 2 parts", "none by two-shot in 1 part"];
        assert_eq!(plan.to_string(), format!("2 buckets\n   0  {}\n   1  {}", ways[0], ways[1]));
        (plan.iteration_s, plan.raw_iteration_s) = (0.0123, 0.02);
        plan.predicted_s[0] = 0.004;
        let first = "2 buckets, a step should take 12.3 ms, raw 20.0 ms";
        let lines = format!("{first}\n   0  {}, 4.0 ms\n   1  {}", ways[0], ways[1]);
        assert_eq!(plan.to_string(), lines);
    }

    #[test]
    fn a_record_says_where_the_time_went() {
        let bucket = BucketRecord {
            name: "head.weight".to_owned(),
            codec: "int8".to_owned(),
            algorithm: "two-shot".to_owned(),
            partitions: 1,
            raw_bytes: 2_000_000,
            sent_bytes: 510_000,
            ready_s: 0.0012,
            done_s: 0.0034,
            ..BucketRecord::default()
        };
        let record = StepRecord {
            step: 7,
            backward_s: 0.01,
            wait_s: 0.002,
            overlap: 0.75,
            buckets: vec![bucket],
            ..StepRecord::default()
        };
        let lines = "step 7: backward 10.0 ms, wait 2.0 ms, commit 0.0 ms, \
                     75 % of the exchange hidden\n  head.weight: int8 by two-shot in 1 part, \
                     1.2 to 3.4 ms, sent 0.51 of 2.00 MB";
        assert_eq!(record.to_string(), lines);
    }
}
