//! The record of a step: how each bucket set out, what its exchange took, what was hidden.

use crate::worker::Arrival;
use crate::{BucketRecord, Synchronizer};

impl Synchronizer {
    /// Opens the record of a bucket that sets out.
    pub(super) fn open_record(&mut self, index: usize) {
        let bucket = &self.buckets[index].bucket;
        let (name, elements) = (bucket.name(&self.parameters), bucket.elements);
        let assignment = &self.plan.assignments[index];
        let ranks = self.buckets[index].world().size() as f64;
        let others = (ranks - 1.0) / ranks;
        self.buckets[index].record = BucketRecord {
            name,
            elements,
            codec: assignment.codec.clone(),
            algorithm: assignment.algorithm.clone(),
            partitions: assignment.partitions,
            raw_bytes: (elements as f64 * 8.0 * others) as u64,
            ready_s: self.begun.elapsed().as_secs_f64(),
            predicted_s: self.plan.predicted_s[index],
            ..BucketRecord::default()
        };
    }

    /// Records the arrival of a bucket.
    pub(super) fn record_arrival(&mut self, arrival: &Arrival) {
        let record = &mut self.buckets[arrival.bucket].record;
        let times = arrival.times;
        record.done_s = arrival.done.duration_since(self.begun).as_secs_f64();
        record.sent_bytes = times.sent_bytes;
        record.received_bytes = times.received_bytes;
        record.encode_s = times.encode.as_secs_f64();
        record.decode_s = times.decode.as_secs_f64();
        let busy = record.encode_s + record.decode_s;
        record.wire_s = (record.done_s - record.ready_s - busy).max(0.0);
        let cpu_s = arrival.cpu.as_secs_f64();
        self.record.cpu_s += cpu_s - self.cpu_s;
        self.cpu_s = cpu_s;
    }

    /// Closes the record of a step whose buckets are committed.
    pub(super) fn close_record(&mut self) {
        let backward_s = self.record.backward_s;
        let all_in_s = backward_s + self.record.wait_s;
        self.record.buckets = self.buckets.iter().map(|bucket| bucket.record.clone()).collect();
        self.record.commit_s = self.begun.elapsed().as_secs_f64() - all_in_s;
        let exchange_s = self.record.total(|bucket| bucket.done_s - bucket.ready_s);
        let exposed_s =
            self.record.total(|bucket| (bucket.done_s - bucket.ready_s.max(backward_s)).max(0.0));
        self.record.overlap = if exchange_s > 0.0 { 1.0 - exposed_s / exchange_s } else { 1.0 };
    }
}
