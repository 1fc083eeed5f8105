//! The phase of a step: which calls a synchroniser takes now.
//!
//! A gradient that is given outside of a step would be averaged with those of another step, and memory that is
//! read before the end of a step holds this rank's own gradients.

use std::fmt;

use crate::{Error, Outcome, Synchronizer};

/// The phase of the newest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing has begun since the buckets were laid out.
    Before,
    /// Gradients are given.
    Begun,
    /// The step has ended.
    Ended(Outcome),
}

impl Synchronizer {
    /// Returns whether the newest step has ended with averages, which [`Synchronizer::gradient`] returns then.
    pub fn has_averages(&self) -> bool {
        self.phase == Phase::Ended(Outcome::Averaged)
    }

    /// Refuses a call that belongs to a step when none has begun.
    pub(crate) fn check_begun(&self, call: impl fmt::Display) -> Result<(), Error> {
        let step = self.step;
        let found = match self.phase {
            Phase::Begun => return Ok(()),
            Phase::Before => "before the first step has begun".to_owned(),
            Phase::Ended(_) => format!("after step {step} has ended"),
        };
        Err(Error::Invalid(format!("{call} {found} (hint: call begin with the next step)")))
    }

    /// Panics if there are no averages to read.
    pub(crate) fn check_averaged(&self, parameter: usize) {
        let (name, step) = (&self.parameters[parameter].name, self.step);
        match self.phase {
            Phase::Ended(Outcome::Averaged) => {}
            Phase::Ended(Outcome::Skipped) => {
                panic!("no average of {name}: step {step} was skipped")
            }
            Phase::Begun => {
                panic!("no average of {name} yet: finish of step {step} was not called")
            }
            Phase::Before => panic!("no average of {name} yet: no step has begun"),
        }
    }
}
