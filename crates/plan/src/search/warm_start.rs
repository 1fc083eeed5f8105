//! What a search has learnt of candidates, and what of it holds on another cluster.
//!
//! On a cluster whose links are r times as fast at most, no plan is r times as fast: its links
//! carry as much, and its arithmetic stays, but for the last backward, which hides more now. With
//! the bound T of a candidate before, and A of its arithmetic without that, no plan of it takes less
//! than T/r + A · (1 − 1/r) now, nor less than all of its arithmetic. Of the plan that the search
//! found for it more is known: what it computes stays, and other strategies may save a part of that.
//! Where what is expected so is not fast enough, the search is spared, and the bound alone is kept.

use std::collections::HashMap;

use super::candidate::Candidate;
use crate::cluster::Cluster;

/// By how much the search may find a faster plan than is expected.
const DOUBT: f64 = 0.005;

/// How much of what a plan computes beyond its arithmetic other strategies may save where links
/// are twice as fast; twice as much where they are three times as fast.
const SAVED: f64 = 0.2;

/// What is known of candidates.
pub(super) type WarmStarts = HashMap<Candidate, WarmStart>;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WarmStart {
    /// Seconds of its arithmetic, whatever the links.
    pub arithmetic_s: f64,
    /// The part of it that may hide exchanges.
    pub hides: f64,
    /// What none of its plans goes below.
    pub least: LowerBound,
    /// The plan that the search found, or is expected to find.
    pub plan: Expectation,
}

/// What no plan of a candidate goes below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LowerBound {
    /// No plan of it takes less than these seconds.
    Seconds(f64),
    /// It does not fit: it needs these bytes of a device's memory, or infinitely many.
    Bytes(f64),
}

/// What the search is expected to find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expectation {
    /// A plan that takes at least these seconds, or what was given up for others; 0 if nothing is
    /// known.
    pub least_s: f64,
    /// The seconds of a known plan; infinitely many if there is none.
    pub most_s: f64,
    /// The part of the plan's seconds in which nothing travels.
    pub computed_s: f64,
    /// How much faster links are than those for which it was found.
    pub speedup: f64,
}

impl Expectation {
    /// Nothing.
    pub const NONE: Expectation = Expectation {
        least_s: 0.0,
        most_s: f64::INFINITY,
        computed_s: 0.0,
        speedup: f64::INFINITY,
    };

    /// A plan that was found.
    pub fn found(seconds: f64, computed_s: f64) -> Expectation {
        Expectation { least_s: seconds, computed_s, speedup: 1.0, ..Expectation::NONE }
    }

    /// Seconds of the plan.
    pub fn seconds(self) -> f64 {
        if self.most_s.is_finite() { self.least_s.max(self.most_s) } else { self.least_s }
    }
}

impl WarmStart {
    /// Nothing but the arithmetic, with the part of it that may hide exchanges.
    pub fn arithmetic(seconds: f64, hides: f64) -> WarmStart {
        WarmStart {
            arithmetic_s: seconds,
            hides,
            least: LowerBound::Seconds(seconds),
            plan: Expectation::NONE,
        }
    }

    /// Seconds below which there is no plan of it.
    pub fn bound_s(self) -> f64 {
        match self.least {
            LowerBound::Seconds(seconds) => seconds,
            LowerBound::Bytes(_) => f64::INFINITY,
        }
    }

    /// The seconds that its plan is expected to take at least.
    pub fn expected_s(self) -> f64 {
        self.bound_s().max(self.plan.seconds())
    }

    /// Whether the search may find a plan of it that takes less than these seconds.
    pub fn may_beat(self, seconds: f64) -> bool {
        self.bound_s() < seconds && self.plan.seconds() * (1.0 - DOUBT) < seconds
    }

    /// What two searches say of the same candidate.
    pub fn and(self, other: WarmStart) -> WarmStart {
        let least = if self.bound_s() < other.bound_s() { other.least } else { self.least };
        let near = if self.plan.speedup <= other.plan.speedup { self.plan } else { other.plan };
        let least_s = self.plan.least_s.max(other.plan.least_s);
        WarmStart { least, plan: Expectation { least_s, ..near }, ..self }
    }

    /// What is left of it where links are faster.
    pub fn on(self, faster: f64) -> WarmStart {
        if faster == 1.0 {
            return self;
        }
        let stays = |computed_s: f64| computed_s * (1.0 - 1.0 / faster);
        let least = match self.least {
            LowerBound::Seconds(seconds) => {
                let stays = stays(self.arithmetic_s * (1.0 - self.hides));
                LowerBound::Seconds((seconds / faster + stays).max(self.arithmetic_s).min(seconds))
            }
            LowerBound::Bytes(bytes) => LowerBound::Bytes(bytes),
        };
        let plan = match self.plan.seconds() {
            0.0 => Expectation::NONE,
            found_s => {
                let arithmetic_s = self.arithmetic_s * (1.0 - self.hides);
                let spare_s = (self.plan.computed_s - arithmetic_s).max(0.0);
                let saved_s = spare_s * (SAVED * (faster - 1.0)).min(1.0);
                let stays_s = stays(self.plan.computed_s - saved_s);
                let most_s = (found_s / faster + stays_s).min(found_s);
                Expectation {
                    least_s: 0.0,
                    most_s,
                    speedup: self.plan.speedup * faster,
                    ..self.plan
                }
            }
        };
        WarmStart { least, plan, ..self }
    }
}

/// How much faster any plan can be on a cluster than on another one with the same devices; none
/// if they differ in more than their links. Of the outermost level there may be more or fewer members, if all links of it
/// are alike: to candidates that work on both it makes no difference.
pub(super) fn faster(before: &Cluster, now: &Cluster) -> Option<f64> {
    let same = before.devices == now.devices && before.kinds == now.kinds;
    let outermost = now.levels.len() - 1;
    if !same || before.levels.len() != now.levels.len() {
        return None;
    }
    let mut most: f64 = 1.0;
    for (at, (before, now)) in before.levels.iter().zip(&now.levels).enumerate() {
        let differ = before.links.is_some() || now.links.is_some();
        if before.size != now.size && (at < outermost || differ) {
            return None;
        }
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
