//! Warm start: bounds and expectations of candidates, carried over from searches on other links.
//!
//! On a cluster whose links are at most r times as fast, no plan is more than r times as fast:
//! links carry as much, and arithmetic stays except for the last backward, which now overlaps more.
//! With the bound T of a candidate before, and A the arithmetic without that backward, no plan of
//! it takes less than T/r + A · (1 − 1/r) now, nor less than all of the arithmetic. For the plan
//! that was found more is known: its computation stays, of which other strategies may save a part.
//! A candidate whose expected time is not fast enough is not solved again, and keeps its bound.

use std::collections::HashMap;

use super::candidate::Candidate;
use crate::cluster::Cluster;

/// Part by which a new search may beat its expectation.
const DOUBT: f64 = 0.005;

/// Part of a plan's computation beyond its arithmetic that other strategies may save where links
/// are twice as fast; twice as much where they are three times as fast.
const SAVED: f64 = 0.2;

/// Warm starts of all candidates of a search.
pub(super) type WarmStarts = HashMap<Candidate, WarmStart>;

/// Warm start of one candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WarmStart {
    /// Arithmetic in seconds, whatever the links.
    pub arithmetic_s: f64,
    /// Part of the arithmetic that may overlap communication.
    pub hides: f64,
    /// Lower bound on its plans.
    pub least: LowerBound,
    /// Plan that a search found, or is expected to find.
    pub plan: Expectation,
}

/// Lower bound on all plans of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LowerBound {
    /// Step time in seconds.
    Seconds(f64),
    /// Memory of a device in bytes that no device has; infinite where the candidate is
    /// contradictory.
    Bytes(f64),
}

/// Expected result of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expectation {
    /// Least seconds of a plan that was found or pruned; 0 if nothing is known.
    pub least_s: f64,
    /// Seconds of a plan that exists; infinite if there is none.
    pub most_s: f64,
    /// Part of the plan's seconds in which nothing travels.
    pub computed_s: f64,
    /// Factor by which links are faster than those for which the plan was found.
    pub speedup: f64,
}

impl Expectation {
    /// No expectation.
    pub const NONE: Expectation = Expectation {
        least_s: 0.0,
        most_s: f64::INFINITY,
        computed_s: 0.0,
        speedup: f64::INFINITY,
    };

    /// Returns the expectation after a plan was found.
    pub fn found(seconds: f64, computed_s: f64) -> Expectation {
        Expectation { least_s: seconds, computed_s, speedup: 1.0, ..Expectation::NONE }
    }

    /// Returns the expected step time in seconds.
    pub fn seconds(self) -> f64 {
        if self.most_s.is_finite() { self.least_s.max(self.most_s) } else { self.least_s }
    }
}

impl WarmStart {
    /// Returns the warm start of a candidate that was never solved.
    pub fn arithmetic(seconds: f64, hides: f64) -> WarmStart {
        WarmStart {
            arithmetic_s: seconds,
            hides,
            least: LowerBound::Seconds(seconds),
            plan: Expectation::NONE,
        }
    }

    /// Returns the lower bound in seconds; infinite where nothing fits.
    pub fn bound_s(self) -> f64 {
        match self.least {
            LowerBound::Seconds(seconds) => seconds,
            LowerBound::Bytes(_) => f64::INFINITY,
        }
    }

    /// Returns the seconds that its best plan is expected to take at least.
    pub fn expected_s(self) -> f64 {
        self.bound_s().max(self.plan.seconds())
    }

    /// Returns whether a search may find a plan that takes less than these seconds.
    pub fn may_beat(self, seconds: f64) -> bool {
        self.bound_s() < seconds && self.plan.seconds() * (1.0 - DOUBT) < seconds
    }

    /// Returns the warm start that two searches give together.
    pub fn and(self, other: WarmStart) -> WarmStart {
        let least = if self.bound_s() < other.bound_s() { other.least } else { self.least };
        let near = if self.plan.speedup <= other.plan.speedup { self.plan } else { other.plan };
        let least_s = self.plan.least_s.max(other.plan.least_s);
        WarmStart { least, plan: Expectation { least_s, ..near }, ..self }
    }

    /// Returns the warm start on links that are `faster` times as fast at most.
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
            // Nothing was found, so nothing can be expected.
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

/// Returns the largest factor by which any plan can be faster on `now` than on `before`, or none if
/// the clusters differ in more than their links.
///
/// The outermost level may have more or fewer members if its links are alike: to candidates that
/// work on both it makes no difference.
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
