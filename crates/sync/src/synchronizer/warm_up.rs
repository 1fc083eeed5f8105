//! The warm-up: first steps in which everything travels raw, before the codec begins.
//!
//! The gradients of a new model are large and change direction from step to step: a residual that a
//! sparse or low-rank codec sends later is stale. During the warm-up buckets, sums and averages are
//! those of `none`, bit for bit. After it buckets are made for the codec, which begins without
//! residuals and with fresh factors, as in a training that begins there. Momentum is kept.
//!
//! Only steps that were kept count, so all ranks count alike, and a skipped step leaves no trace. The
//! count is part of the state. The error budget of `auto`, which grows in the first steps of a
//! training, follows the same count. A state without a count comes from a training that has neither a
//! warm-up nor a budget, or from an older version; it counts as past both.

use crate::options::WARM_UP_STEPS_MAX as STEPS_MAX;
use crate::{Error, Options};

/// The progress of a warm-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmUp {
    /// The length of the warm-up.
    steps: u64,
    /// The number of steps kept so far.
    kept: u64,
    /// Whether the buckets are those of the warm-up.
    in_force: bool,
    /// Whether `auto` keeps to an error budget, which follows the count.
    has_budget: bool,
}

impl WarmUp {
    /// Returns the warm-up of a training at its beginning.
    pub(crate) fn new(options: &Options) -> WarmUp {
        let has_budget = options.policy.keeps_a_budget();
        WarmUp { steps: options.warm_up_steps, kept: 0, in_force: false, has_budget }
    }

    /// Returns the number of steps of the training that were kept, at most [`STEPS_MAX`].
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Returns whether the next step belongs to the warm-up.
    pub(crate) fn is_on(&self) -> bool {
        self.kept < self.steps
    }

    /// Returns whether the buckets are those of the warm-up, which may be over.
    pub(crate) fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// Notes that buckets are made for the next step.
    pub(crate) fn lay_out(&mut self) {
        self.in_force = self.is_on();
    }

    /// Ends before its steps are over, whatever their number.
    pub(crate) fn finish(&mut self) {
        self.kept = STEPS_MAX;
    }

    /// Counts a step that was kept.
    pub(crate) fn count(&mut self) {
        self.kept = (self.kept + 1).min(STEPS_MAX);
    }

    /// Returns the count for a state, if anything follows it.
    pub(crate) fn saved(&self) -> Option<f32> {
        (self.steps > 0 || self.has_budget).then_some(self.kept as f32)
    }

    /// Continues from the count of a state; without one, past the first steps of any training.
    pub(crate) fn load(&mut self, saved: Option<&[f32]>) -> Result<(), Error> {
        let Some(values) = saved else {
            self.kept = STEPS_MAX;
            return Ok(());
        };
        let is_count = |kept: &f32| kept.fract() == 0.0 && (0.0..=STEPS_MAX as f32).contains(kept);
        match values {
            [kept] if is_count(kept) => self.kept = *kept as u64,
            other => {
                return Err(Error::Invalid(format!(
                    "warm_up in the state is {other:?}, expected one whole number up to {STEPS_MAX}"
                )));
            }
        }
        Ok(())
    }
}
