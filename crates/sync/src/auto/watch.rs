//! The watch over the link: whether exchanges take as long as predicted.
//!
//! The watch is a state machine without clock or network. It receives the measurements of each step,
//! the same numbers on all ranks, and all ranks ask for a measurement of the link in the same step. Two
//! things are watched:
//!
//! - **drift**: the measured time in which gradients are on the wire and nothing of them is computed,
//!   divided by the predicted one. If it is far from the normal drift in most of the last steps, the
//!   link may have changed and is measured. Every plan has a normal drift of its own, since predictions
//!   may be off.
//! - **silence**: a plan that sends little reveals little about the link. After many steps without
//!   information the link is measured, so that its recovery is noticed.
//!
//! Trials judge how long steps take ([`crate::auto::trial`]).
//!
//! Laws: noise that stays within the drift allowed changes nothing; a link that becomes twice as slow
//! or fast is noticed within [`LARGE_PATIENCE`] steps, also while plans take turns.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::median;

/// Steps between two exchanges of reports.
pub(crate) const INTERVAL: u64 = 4;

/// Factor by which measured and predicted times may differ.
const DRIFT_MAX: f64 = 1.3;

/// Number of steps of which three in four must stray to one side before the link is measured again: at
/// first, and at most after measurements that changed nothing.
const PATIENCE: usize = 3;
const PATIENCE_MAX: usize = 96;

/// A large drift, and the most patience with it.
const LARGE_DRIFT: f64 = 2.0;
const LARGE_PATIENCE: usize = 12;

/// Steps and seconds without information about the link after which it is measured: so rarely that
/// measuring takes about one percent of the time.
const SILENCE_STEPS: u64 = 16;
const SILENCE_S: f64 = 8.0;

/// Steps after a switch that do not count, since memory is touched for the first time.
const SETTLING: usize = 2;

/// The measurements of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// The iteration's time on the slowest rank, in seconds.
    pub(crate) seconds: f64,
    /// Measured time on the wire divided by the predicted one, on the rank that waited least for
    /// others; `None` if that time is too short to be meaningful.
    pub(crate) drift: Option<f64>,
}

/// The plan in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InForce {
    pub(crate) hash: u32,
    /// Whether it is not faster than everything raw.
    pub(crate) is_raw: bool,
}

/// The measurements of the link under the plan in force.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    plan: InForce,
    /// The drift that is usual under a plan, where it is known; else 1.
    normal: BTreeMap<u32, f64>,
    patience: usize,
    /// The last drifts, over what is normal.
    drifts: Vec<f64>,
    /// Steps and seconds without information about the link since it was measured.
    silence: (u64, f64),
    settling: usize,
}

/// Drifts that were usual under the plans so far, and the patience with others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usual {
    normal: BTreeMap<u32, f64>,
    patience: usize,
}

impl Watch {
    /// Returns the watch under a plan.
    pub(crate) fn new(plan: InForce) -> Watch {
        Watch {
            plan,
            normal: BTreeMap::new(),
            patience: PATIENCE,
            drifts: Vec::new(),
            silence: (0, 0.0),
            settling: SETTLING,
        }
    }

    /// Returns the part that a state holds.
    pub(crate) fn usual(&self) -> Usual {
        Usual { normal: self.normal.clone(), patience: self.patience }
    }

    /// Returns the watch under a plan, with what was usual before.
    pub(crate) fn resumed(plan: InForce, usual: Usual) -> Watch {
        let Usual { normal, patience } = usual;
        let patience = patience.clamp(PATIENCE, PATIENCE_MAX);
        Watch { normal, patience, ..Watch::new(plan) }
    }

    /// Records a step. Returns the factor by which bytes take longer than predicted, if the link is to be
    /// measured before the next step.
    pub(crate) fn record(&mut self, reading: Reading) -> Option<f64> {
        if self.settling > 0 {
            self.settling -= 1;
            return None;
        }
        let slowdown = reading.drift.and_then(|drift| self.stray(drift / self.normal()));
        slowdown
            .map(|relative| relative * self.normal())
            .or_else(|| self.is_silent_for_long(&reading).then_some(1.0))
    }

    fn normal(&self) -> f64 {
        self.normal.get(&self.plan.hash).copied().unwrap_or(1.0)
    }

    /// Returns the median of the last drifts, if they have strayed for long enough.
    fn stray(&mut self, drift: f64) -> Option<f64> {
        if self.drifts.len() == PATIENCE_MAX {
            self.drifts.remove(0);
        }
        self.drifts.push(drift);
        self.lately(self.patience, DRIFT_MAX)
            .or_else(|| self.lately(self.patience.min(LARGE_PATIENCE), LARGE_DRIFT))
    }

    /// Returns the median of the last `steps` drifts, if three in four, the last one among them, strayed to one
    /// side.
    fn lately(&self, steps: usize, limit: f64) -> Option<f64> {
        let mut lately = self.drifts[self.drifts.len().checked_sub(steps)?..].to_vec();
        let side = strays(*lately.last()?, limit)?;
        let alike = lately.iter().filter(|drift| strays(**drift, limit) == Some(side)).count();
        (4 * alike >= 3 * steps).then(|| median(&mut lately))
    }

    /// Returns whether steps have had no information about the link for long. If a raw plan has none,
    /// the link is fast enough.
    fn is_silent_for_long(&mut self, reading: &Reading) -> bool {
        let (steps, seconds) = self.silence;
        self.silence = match reading.drift {
            Some(_) => (steps, seconds),
            None => (steps + 1, seconds + reading.seconds),
        };
        !self.plan.is_raw && self.silence.0 >= SILENCE_STEPS && self.silence.1 >= SILENCE_S
    }

    /// Records that another plan is in force from now on.
    pub(crate) fn switched(&mut self, plan: InForce) {
        self.plan = plan;
        self.settling = SETTLING;
    }

    /// Forgets drifts under other plans, because one was settled on.
    pub(crate) fn settled(&mut self) {
        self.drifts.clear();
        self.patience = PATIENCE;
    }

    /// Adopts a measurement that found another link: nothing that was known holds.
    pub(crate) fn found_other_link(&mut self) {
        let patience = self.doubled_patience();
        *self = Watch { settling: 0, patience, ..Watch::new(self.plan) };
    }

    /// Adopts a measurement that found the link as it was: the prediction is off, and the drift that led to the
    /// measurement is normal from now on.
    pub(crate) fn found_same_link(&mut self) {
        // After so many steps that said nothing, silence is taken for the reason to measure, and not a drift.
        if std::mem::take(&mut self.silence).0 >= SILENCE_STEPS {
            return;
        }
        // Older drifts had no part in the decision to measure.
        let lately = self.drifts.len().saturating_sub(self.patience);
        let normal = self.normal() * median(&mut self.drifts[lately..]);
        self.normal.insert(self.plan.hash, normal);
        self.drifts.clear();
        self.patience = self.doubled_patience();
    }

    /// Returns twice the patience; it goes back when another plan is settled on.
    fn doubled_patience(&self) -> usize {
        (2 * self.patience).min(PATIENCE_MAX)
    }
}

/// Returns whether a drift is above (true) or below (false) the normal one; `None` if it is within the
/// limit.
fn strays(drift: f64, limit: f64) -> Option<bool> {
    let within = (1.0 / limit..=limit).contains(&drift);
    (!within).then_some(drift > 1.0)
}

#[cfg(test)]
mod tests;
