//! The watch over the plan in force: whether it keeps what was predicted of it.
//!
//! A state machine without clock or network. It is fed what each step showed, the same numbers on
//! all ranks, and all ranks come to the same verdict. Two things are watched:
//!
//! - **drift**: the time in which gradients were on the wire and nothing was computed of them, over
//!   what was predicted for it. Where it leaves what is normal in most of some steps, the link may
//!   have changed: measure it.
//! - **silence**: a plan that sends little tells little of the link. Where one has told nothing for
//!   many steps, the link is measured, so that its recovery is found out.
//! - **time**: how long iterations take. A plan that takes longer than the one before it is rolled
//!   back; one that takes longer than raw gives way to raw. Dropped plans are remembered.
//!
//! Laws: noise that stays within the drift allowed changes nothing; a link that becomes twice as slow
//! or fast is asked about within [`LARGE_PATIENCE`] steps; what was dropped is not taken again while
//! the link stays what it is and the memory lasts.

use crate::measure::quartiles::Quartiles;

/// Steps between two times that ranks tell each other what they saw.
pub(crate) const INTERVAL: u64 = 4;

/// Factor by which measured and predicted times may part.
const DRIFT_MAX: f64 = 1.3;

/// Steps whose drift is looked at together, of which three in four must stray to one side, before the
/// link is measured again: at first, and at most, where measuring has changed nothing.
const PATIENCE: usize = 3;
const PATIENCE_MAX: usize = 96;

/// A drift that cannot be missed, and how much patience there is with it at most.
const LARGE_DRIFT: f64 = 2.0;
const LARGE_PATIENCE: usize = 12;

/// Steps, and seconds, in which a plan tells nothing of the link until it is measured: seldom enough
/// that nobody notices the measuring.
const SILENCE_STEPS: u64 = 16;
const SILENCE_S: f64 = 10.0;

/// Steps after a switch that count for nothing: memory is touched for the first time.
const SETTLING: usize = 2;

/// Steps whose times are judged together.
const WINDOW: usize = 8;

/// Factor by which a plan may be slower and still count as equally fast.
const WORSE: f64 = 1.05;

/// A step so much slower than the plan before took is no noise; three of them end a trial at once.
const MUCH_WORSE: f64 = 1.5;

/// Factor by which a measured time may exceed the time that is only predicted of raw.
const DOUBT: f64 = 1.1;

/// Steps for which a dropped plan stays dropped.
const MEMORY: u64 = 400;

/// The measurements of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// The iteration's time on the slowest rank, in seconds.
    pub(crate) seconds: f64,
    /// Time on the wire over what was predicted, on the rank that waited least for others; none
    /// where so little time was spent that it says nothing.
    pub(crate) drift: Option<f64>,
}

/// The verdict on the plan in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Keep it.
    Stay,
    /// Measure the link: bytes take this many times as long as predicted.
    Probe { slowdown: f64 },
    /// Roll back to the plan before, which was faster.
    RollBack,
    /// Switch to raw, which is faster.
    Raw,
}

/// The measurements of the plan in force and of those before it, under the link as it is.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    count: u64,
    /// The drift that is usual under this plan.
    normal: f64,
    patience: usize,
    /// The last drifts.
    drifts: Vec<f64>,
    /// Steps and seconds in a row that told nothing of the link.
    silence: (u64, f64),
    settling: usize,
    times: Vec<f64>,
    plan: u32,
    is_raw: bool,
    /// Times of the plan in force, once a window of it is full.
    now: Option<Quartiles>,
    /// Times of the plan before the last switch.
    before: Option<(u32, Quartiles)>,
    /// Times of raw, as measured and as predicted.
    raw: Option<Quartiles>,
    raw_predicted_s: f64,
    /// Plans that were dropped, and until when.
    dropped: Vec<(u32, u64)>,
    /// The next switch is back to a plan that is known.
    returning: bool,
}

impl Watch {
    /// Over the plan with this hash.
    pub(crate) fn new(plan: u32, is_raw: bool) -> Watch {
        Watch {
            count: 0,
            normal: 1.0,
            patience: PATIENCE,
            drifts: Vec::new(),
            silence: (0, 0.0),
            settling: SETTLING,
            times: Vec::new(),
            plan,
            is_raw,
            now: None,
            before: None,
            raw: None,
            raw_predicted_s: 0.0,
            dropped: Vec::new(),
            returning: false,
        }
    }

    /// Records a step and returns the verdict, which the caller acts on before the next step.
    pub(crate) fn record(&mut self, reading: Reading) -> Verdict {
        self.count += 1;
        self.dropped.retain(|(_, until)| *until > self.count);
        if self.settling > 0 {
            self.settling -= 1;
            return Verdict::Stay;
        }
        if let Some(slowdown) = reading.drift.and_then(|drift| self.stray(drift)) {
            return Verdict::Probe { slowdown };
        }
        if self.is_silent_for_long(&reading) {
            return Verdict::Probe { slowdown: 1.0 };
        }
        // Whether it is the link comes first: what takes long because of it is no plan's fault.
        if self.drifts.last().is_some_and(|drift| self.strays(*drift, DRIFT_MAX).is_some()) {
            return Verdict::Stay;
        }
        self.times.push(reading.seconds);
        self.judge()
    }

    /// The median drift of late, if it has strayed for long enough.
    fn stray(&mut self, drift: f64) -> Option<f64> {
        if self.drifts.len() == PATIENCE_MAX {
            self.drifts.remove(0);
        }
        self.drifts.push(drift);
        self.lately(self.patience, DRIFT_MAX)
            .or_else(|| self.lately(self.patience.min(LARGE_PATIENCE), LARGE_DRIFT))
    }

    /// The median of the last `steps` drifts, if they, the last one among them, left what is normal.
    fn lately(&self, steps: usize, limit: f64) -> Option<f64> {
        let mut lately = self.drifts[self.drifts.len().checked_sub(steps)?..].to_vec();
        let side = self.strays(*lately.last()?, limit)?;
        let alike = lately.iter().filter(|drift| self.strays(**drift, limit) == Some(side)).count();
        (4 * alike >= 3 * steps).then(|| Quartiles::of(&mut lately).median)
    }

    /// Whether a drift is above what is normal (true) or below it (false), where it is not within.
    fn strays(&self, drift: f64, limit: f64) -> Option<bool> {
        let relative = drift / self.normal;
        let within = (1.0 / limit..=limit).contains(&relative);
        (!within).then_some(relative > 1.0)
    }

    /// Whether nothing was heard of the link for long. Raw hides nothing: if that tells nothing, the
    /// link is fast enough.
    fn is_silent_for_long(&mut self, reading: &Reading) -> bool {
        let (steps, seconds) = self.silence;
        self.silence = match reading.drift {
            Some(_) => (0, 0.0),
            None => (steps + 1, seconds + reading.seconds),
        };
        !self.is_raw && self.silence.0 >= SILENCE_STEPS && self.silence.1 >= SILENCE_S
    }

    /// Judges the plan by the times of its last steps.
    fn judge(&mut self) -> Verdict {
        let hopeless = self.is_hopeless();
        if !hopeless && self.times.len() < WINDOW {
            return Verdict::Stay;
        }
        let quartiles = Quartiles::of(&mut self.times);
        self.times.clear();
        self.now = Some(quartiles);
        if self.is_raw {
            self.raw = Some(quartiles);
        }
        match &self.before {
            Some((_, before)) if hopeless || quartiles.exceeds(before, WORSE) => {
                self.drop_plan(Verdict::RollBack)
            }
            _ if !self.is_raw && self.is_slower_than_raw(&quartiles) => {
                self.drop_plan(Verdict::Raw)
            }
            _ => Verdict::Stay,
        }
    }

    /// Whether the first steps are far worse than those of the plan before.
    fn is_hopeless(&self) -> bool {
        let Some((_, before)) = &self.before else { return false };
        let limit = before.upper * MUCH_WORSE;
        self.now.is_none() && self.times.len() >= 3 && self.times.iter().all(|time| *time > limit)
    }

    fn is_slower_than_raw(&self, quartiles: &Quartiles) -> bool {
        match &self.raw {
            Some(raw) => quartiles.exceeds(raw, WORSE),
            None => self.raw_predicted_s > 0.0 && quartiles.lower > DOUBT * self.raw_predicted_s,
        }
    }

    fn drop_plan(&mut self, verdict: Verdict) -> Verdict {
        self.dropped.push((self.plan, self.count + MEMORY));
        if let (Verdict::RollBack, Some((before, _))) = (verdict, self.before) {
            self.dropped.retain(|(plan, _)| *plan != before);
            self.returning = true;
        }
        verdict
    }

    /// Whether a plan was dropped under this link.
    pub(crate) fn has_dropped(&self, plan: u32) -> bool {
        self.dropped.iter().any(|(dropped, _)| *dropped == plan)
    }

    /// Another plan is in force from now on.
    pub(crate) fn switched(&mut self, plan: u32, is_raw: bool) {
        let (left, took) = (self.plan, self.now.take());
        let trial = !std::mem::take(&mut self.returning);
        self.before = took.filter(|_| trial).map(|quartiles| (left, quartiles));
        (self.plan, self.is_raw) = (plan, is_raw);
        (self.normal, self.settling) = (1.0, SETTLING);
        self.times.clear();
        self.drifts.clear();
        self.silence = (0, 0.0);
        self.patience = PATIENCE;
    }

    /// Raw is predicted to take so long now; zero if that is not known.
    pub(crate) fn expect_of_raw(&mut self, seconds: f64) {
        self.raw_predicted_s = seconds;
    }

    /// The link was measured. If it is another than before, nothing that was known of plans holds;
    /// else the prediction is off by what was seen, which is normal from now on.
    pub(crate) fn measured(&mut self, link_changed: bool) {
        // It goes back when another plan follows.
        let patience = (2 * self.patience).min(PATIENCE_MAX);
        if link_changed {
            let fresh = Watch::new(self.plan, self.is_raw);
            *self = Watch { count: self.count, settling: 0, patience, ..fresh };
            return;
        }
        if std::mem::take(&mut self.silence).0 >= SILENCE_STEPS {
            return;
        }
        let lately = self.drifts.len().saturating_sub(self.patience);
        self.normal = Quartiles::of(&mut self.drifts[lately..]).median;
        self.drifts.clear();
        self.patience = patience;
    }
}

#[cfg(test)]
mod tests;
