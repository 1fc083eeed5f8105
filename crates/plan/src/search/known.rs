//! What a search has learnt of candidates, and what of it holds on another cluster.
//!
//! On a cluster whose links are r times as fast at most, no plan is r times as fast: its links
//! carry as much, and its arithmetic stays. With the least time T of a candidate before, and A of
//! its arithmetic, no plan of it takes less than T/r + A · (1 − 1/r) now.

use std::collections::HashMap;

use super::candidate::Candidate;
use crate::cluster::Cluster;

/// What is known of candidates.
pub(super) type Seen = HashMap<Candidate, Known>;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Known {
    /// No plan of it takes less than these seconds.
    Seconds(f64),
    /// It does not fit: it needs these bytes of a device's memory, or infinitely many.
    Bytes(f64),
}

impl Known {
    /// The same as seconds.
    pub fn bound_s(self) -> f64 {
        match self {
            Known::Seconds(seconds) => seconds,
            Known::Bytes(_) => f64::INFINITY,
        }
    }

    /// What is left of it where links are faster, with the seconds of the arithmetic.
    pub fn on(self, faster: f64, arithmetic_s: f64) -> Known {
        match self {
            Known::Seconds(seconds) => {
                let least = seconds / faster + arithmetic_s * (1.0 - 1.0 / faster);
                Known::Seconds(least.min(seconds))
            }
            Known::Bytes(bytes) => Known::Bytes(bytes),
        }
    }
}

/// How much faster any plan can be on a cluster than on another one with the same devices; none
/// if they differ in more than their links.
pub(super) fn faster(before: &Cluster, now: &Cluster) -> Option<f64> {
    let same = before.devices == now.devices && before.kinds == now.kinds;
    if !same || before.levels.len() != now.levels.len() {
        return None;
    }
    let mut most: f64 = 1.0;
    for (before, now) in before.levels.iter().zip(&now.levels) {
        if before.size != now.size {
            return None;
        }
        most = most.max(now.bytes_per_s / before.bytes_per_s);
        if before.latency_s > now.latency_s {
            most = most.max(before.latency_s / now.latency_s);
        }
    }
    Some(most)
}
