//! The timeline of one iteration, simulated.
//!
//! Buckets become ready during the backward pass and share one network and one processor for the exchange,
//! first come, first served; a bucket enters the network once its first piece is encoded. With fewer than
//! two cores per rank, encoding, decoding and moving bytes delay the backward pass by as long as they take.

use serde::{Deserialize, Serialize};

/// The time at which the last gradient of a bucket is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Readiness {
    /// Seconds since the step began.
    pub ready_s: f64,
}

/// The measurements of an iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// End of the backward pass, in seconds since the step began.
    pub backward_s: f64,
    /// Readiness of each bucket, by the bucket's number.
    pub buckets: Vec<Readiness>,
    /// Whether the exchange uses the cores that backward needs.
    #[serde(skip)]
    pub shares_cores: bool,
}

/// The price of the exchange of one bucket, in seconds; zeros where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Price {
    /// Time from ready to done, with the network to itself.
    pub alone_s: f64,
    /// Part of `alone_s` until the network has something to carry.
    #[serde(default)]
    pub lead_s: f64,
    /// Part of `alone_s` in which the network is busy.
    pub wire_s: f64,
    /// Part of `alone_s` in which the processor is busy.
    pub cpu_s: f64,
    /// Additional processor time for moving the bytes.
    #[serde(default)]
    pub move_s: f64,
    /// Time of computing after all bytes of the step have arrived.
    pub commit_s: f64,
}

/// The simulated times of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prediction {
    /// Time from the step's beginning until all averages have arrived.
    pub(crate) seconds: f64,
    /// Times at which each bucket is ready and done.
    pub(crate) spans: Vec<(f64, f64)>,
}

impl Prediction {
    /// Returns the time of each bucket from ready to done.
    pub(crate) fn exchanges_s(&self) -> Vec<f64> {
        self.spans.iter().map(|(ready, done)| done - ready).collect()
    }
}

/// Simulates one iteration.
pub(crate) fn predict(measured: &Measured, prices: &[Price]) -> Prediction {
    let mut clock = Clock { shares_cores: measured.shares_cores, ..Clock::default() };
    let mut spans = Vec::with_capacity(prices.len());
    for (bucket, price) in measured.buckets.iter().zip(prices) {
        spans.push(clock.exchange(bucket, price));
    }
    Prediction { seconds: clock.end(measured.backward_s), spans }
}

/// Returns the time of one iteration, in seconds.
pub(crate) fn seconds<'a>(measured: &Measured, prices: impl Iterator<Item = &'a Price>) -> f64 {
    let mut clock = Clock { shares_cores: measured.shares_cores, ..Clock::default() };
    for (bucket, price) in measured.buckets.iter().zip(prices) {
        clock.exchange(bucket, price);
    }
    clock.end(measured.backward_s)
}

/// Returns the time, in seconds, in which something is on its way and nothing of it is being computed.
/// Spans overlap, so their own times do not add up.
pub(crate) fn wire_s(spans: impl Iterator<Item = (f64, f64)>, computed_s: f64) -> f64 {
    (covered_s(spans) - computed_s).max(0.0)
}

/// Returns the length of the union of spans of time.
pub(crate) fn covered_s(spans: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut spans: Vec<(f64, f64)> = spans.collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut covered, mut end) = (0.0, 0.0_f64);
    for (from, to) in spans {
        covered += (to - from.max(end)).max(0.0);
        end = end.max(to);
    }
    covered
}

/// The progress of the simulation.
#[derive(Default)]
struct Clock {
    shares_cores: bool,
    /// Time that the exchange has taken from backward.
    stolen_s: f64,
    processor_free_s: f64,
    wire_free_s: f64,
    last_s: f64,
    commit_s: f64,
}

impl Clock {
    /// Returns when a bucket is ready and when it is done.
    fn exchange(&mut self, bucket: &Readiness, price: &Price) -> (f64, f64) {
        let ready = bucket.ready_s + self.stolen_s;
        let work_s = price.cpu_s + price.move_s;
        let encoded = self.processor_free_s.max(ready) + price.lead_s;
        let start = self.wire_free_s.max(encoded);
        self.wire_free_s = start + price.wire_s;
        self.processor_free_s = self.processor_free_s.max(ready) + work_s;
        let done = (start + price.alone_s - price.lead_s).max(self.processor_free_s);
        if self.shares_cores {
            self.stolen_s += work_s;
        }
        self.last_s = self.last_s.max(done);
        self.commit_s += price.commit_s;
        (ready, done)
    }

    fn end(&self, backward_s: f64) -> f64 {
        self.last_s.max(backward_s + self.stolen_s) + self.commit_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_on_the_wire_is_counted_once() {
        let spans = [(1.0, 4.0), (3.0, 5.0), (7.0, 8.0), (3.5, 3.6)];
        assert_eq!(wire_s(spans.into_iter(), 2.0), 4.0 + 1.0 - 2.0);
        assert_eq!(wire_s(spans.into_iter(), 9.0), 0.0);
    }

    #[test]
    fn buckets_share_the_network() {
        let price = Price {
            alone_s: 3.0,
            lead_s: 0.0,
            wire_s: 2.0,
            cpu_s: 0.25,
            move_s: 0.25,
            commit_s: 0.25,
        };
        let ready = |ready_s| Readiness { ready_s };
        let mut measured = Measured {
            backward_s: 2.0,
            buckets: vec![ready(1.0), ready(2.0)],
            shares_cores: false,
        };
        let prediction = predict(&measured, &[price; 2]);
        assert_eq!(prediction.spans, [(1.0, 4.0), (2.0, 6.0)]);
        assert_eq!(prediction.seconds, 6.5);
        assert_eq!(seconds(&measured, [price; 2].iter()), 6.5);
        measured.shares_cores = true;
        assert_eq!(predict(&measured, &[price; 2]).spans[1].0, 2.5);
    }

    #[test]
    fn what_is_not_yet_encoded_is_not_sent() {
        let price =
            |lead_s, cpu_s| Price { alone_s: 4.0, lead_s, wire_s: 2.0, cpu_s, ..Price::default() };
        let ready = |ready_s| Readiness { ready_s };
        let measured = Measured {
            backward_s: 2.0,
            buckets: vec![ready(1.0), ready(1.0)],
            shares_cores: false,
        };
        let spans = |price| predict(&measured, &[price; 2]).spans;
        // The second is encoded while the first is on the wire, from 2 to 4.
        assert_eq!(spans(price(1.0, 1.0)), [(1.0, 5.0), (1.0, 7.0)]);
        // Its processor has 5 seconds to do for the first before.
        assert_eq!(spans(price(1.0, 5.0)), [(1.0, 6.0), (1.0, 11.0)]);
    }
}
