//! What a search has learnt of candidates, and what of it holds on another cluster.
//!
//! On a cluster whose links are r times as fast at most, no plan is r times as fast: its links
//! carry as much, and its arithmetic stays, but for the last backward, which hides more now. With
//! the bound T of a candidate before, and A of its arithmetic without that, no plan of it takes less
//! than T/r + A · (1 − 1/r) now. The same is expected of the plan that the search found for it:
//! where that is not fast enough, the search is spared, and the bound alone is kept.

use std::collections::HashMap;

use super::candidate::Candidate;
use crate::cluster::Cluster;

/// By how much the search may find a faster plan than is expected.
const DOUBT: f64 = 0.005;

/// What is known of candidates.
pub(super) type Seen = HashMap<Candidate, Known>;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Known {
    /// Seconds of its arithmetic that hides no exchange.
    pub arithmetic_s: f64,
    /// What none of its plans goes below.
    pub least: Least,
    /// The seconds of the plan that the search found, or of what it gave up for others, or that it
    /// is expected to find; 0 if there was none.
    pub found_s: f64,
}

/// What no plan of a candidate goes below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Least {
    /// No plan of it takes less than these seconds.
    Seconds(f64),
    /// It does not fit: it needs these bytes of a device's memory, or infinitely many.
    Bytes(f64),
}

impl Known {
    /// Nothing but the arithmetic, with the part of it that may hide exchanges.
    pub fn arithmetic(seconds: f64, hides: f64) -> Known {
        let arithmetic_s = seconds * (1.0 - hides);
        Known { arithmetic_s, least: Least::Seconds(seconds), found_s: 0.0 }
    }

    /// Seconds below which there is no plan of it.
    pub fn bound_s(self) -> f64 {
        match self.least {
            Least::Seconds(seconds) => seconds,
            Least::Bytes(_) => f64::INFINITY,
        }
    }

    /// The seconds that its plan is expected to take at least.
    pub fn expected_s(self) -> f64 {
        self.bound_s().max(self.found_s)
    }

    /// Whether the search may find a plan of it that takes less than these seconds.
    pub fn may_beat(self, seconds: f64) -> bool {
        self.bound_s() < seconds && self.found_s * (1.0 - DOUBT) < seconds
    }

    /// What two searches say of the same candidate.
    pub fn and(self, other: Known) -> Known {
        let least = if self.bound_s() < other.bound_s() { other.least } else { self.least };
        Known { least, found_s: self.found_s.max(other.found_s), ..self }
    }

    /// What is left of it where links are faster.
    pub fn on(self, faster: f64) -> Known {
        let on = |seconds: f64| {
            let least = seconds / faster + self.arithmetic_s * (1.0 - 1.0 / faster);
            least.min(seconds)
        };
        let least = match self.least {
            Least::Seconds(seconds) => Least::Seconds(on(seconds)),
            Least::Bytes(bytes) => Least::Bytes(bytes),
        };
        Known { least, found_s: on(self.found_s), ..self }
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
        let differ = before.links.is_some() || now.links.is_some();
        let members = if differ { now.size } else { 2.min(now.size) };
        let pairs = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let (before, now) = (before.lane(from, to), now.lane(from, to));
            most = most.max(now.bytes_per_s / before.bytes_per_s);
            if before.latency_s > now.latency_s {
                most = most.max(before.latency_s / now.latency_s);
            }
        }
    }
    Some(most)
}
