//! The timeline of one iteration, simulated.
//!
//! Buckets become ready during backward and share one network, first come first served. With fewer
//! than two cores per rank, what the exchange computes delays backward by as much.

use crate::plan::Candidate;

/// When one bucket's last gradient is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readiness {
    /// Seconds since the step began.
    pub ready_s: f64,
}

/// What was measured of an iteration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// When backward ends, in seconds since the step began.
    pub backward_s: f64,
    /// When each bucket is ready, in the order of readiness.
    pub buckets: Vec<Readiness>,
    /// Computing for the exchange takes cores away from backward.
    pub crowded: bool,
}

/// What a plan would take.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prediction {
    /// From the step's beginning until all averages are there.
    pub(crate) seconds: f64,
    /// For each bucket, from ready to done.
    pub(crate) exchanges_s: Vec<f64>,
}

/// Plays one iteration through.
pub(crate) fn predict(measured: &Measured, picked: &[&Candidate]) -> Prediction {
    let (mut stolen, mut wire_free, mut last, mut commit) = (0.0, 0.0_f64, 0.0_f64, 0.0);
    let mut exchanges_s = Vec::with_capacity(picked.len());
    for (bucket, candidate) in measured.buckets.iter().zip(picked) {
        let cost = &candidate.cost;
        let ready = bucket.ready_s + stolen;
        let start = wire_free.max(ready);
        let done = start + cost.seconds;
        wire_free = start + cost.egress_seconds.max(cost.ingress_seconds);
        if measured.crowded {
            stolen += cost.cpu_seconds;
        }
        last = last.max(done);
        commit += candidate.commit_s;
        exchanges_s.push(done - ready);
    }
    Prediction { seconds: last.max(measured.backward_s + stolen) + commit, exchanges_s }
}
