//! Records: where the time of a step went, bucket by bucket.
//!
//! All times are seconds since [`crate::Synchronizer::begin`]; durations are seconds. The record feeds
//! the planner, the report and the trace; every rank keeps its own.

use serde::{Deserialize, Serialize};

use crate::Planning;
use crate::auto::timeline::covered_s;

/// The times and bytes of one bucket's exchange.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// The first and last parameter in the bucket, as "block.3.mlp.up.weight … block.2.out.weight".
    pub name: String,
    /// Elements in the bucket.
    pub elements: usize,
    /// The codec that encoded it, as `--codec` takes it.
    pub codec: String,
    /// The algorithm that moved it, as `--algorithm` takes it.
    pub algorithm: String,
    /// The number of pipelined partitions of the bucket.
    pub partitions: usize,
    /// Bytes that a raw f32 exchange with the same algorithm would have sent.
    pub raw_bytes: u64,
    /// Bytes sent by this rank, headers included.
    pub sent_bytes: u64,
    /// Bytes received by this rank, headers included.
    pub received_bytes: u64,
    /// When its last gradient was ready.
    pub ready_s: f64,
    /// When its last byte had been received and merged.
    pub done_s: f64,
    /// Time spent encoding.
    pub encode_s: f64,
    /// Time spent decoding and merging.
    pub decode_s: f64,
    /// Time in which its messages were on their way and nothing of it was being encoded, decoded or
    /// merged.
    pub wire_s: f64,
    /// The prediction of the plan for `done_s - ready_s`; zero without one.
    pub predicted_s: f64,
}

/// The times and bytes of one step's exchange.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step.
    pub step: u64,
    /// Every bucket, in the order in which they became ready.
    pub buckets: Vec<BucketRecord>,
    /// When the last gradient was ready: backward had ended.
    pub backward_s: f64,
    /// The time that `finish` waited for the exchange: exposed communication.
    pub wait_s: f64,
    /// The time that `finish` took to decode and commit after the last byte had come.
    pub commit_s: f64,
    /// Seconds of CPU time that the communication thread used during the step.
    pub cpu_s: f64,
    /// The fraction of exchange time that was hidden behind backward, 0 to 1.
    pub overlap: f64,
    /// On rank 0, the record of the planning before or after the step, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning: Option<Box<Planning>>,
}

impl StepRecord {
    /// Returns the sum over buckets of one figure.
    pub fn total<T: std::iter::Sum>(&self, figure: impl Fn(&BucketRecord) -> T) -> T {
        self.buckets.iter().map(figure).sum()
    }

    /// Returns the seconds before the end of backward in which some bucket was on its way: buckets travel side
    /// by side, so that their own times do not add up.
    pub fn hidden_s(&self) -> f64 {
        let hidden = |bucket: &BucketRecord| (bucket.ready_s, bucket.done_s.min(self.backward_s));
        covered_s(self.buckets.iter().map(hidden))
    }

    /// Returns the seconds in which some bucket was on its way.
    pub fn exchange_s(&self) -> f64 {
        covered_s(self.buckets.iter().map(|bucket| (bucket.ready_s, bucket.done_s)))
    }
}
