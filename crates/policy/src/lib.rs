//! Policies: the batch, the learning rate, the number of ranks and the error budget, adapted while a training runs.
//!
//! A [`Policy`] is a pure state machine: after each step it gets an [`Observation`] and may ask for an
//! [`Adjustment`]. The training carries it out on all ranks in the same step. KungFu has adaptation
//! policies of this kind (Mai et al., "KungFu: Making Training in Distributed Machine Learning
//! Adaptive", OSDI 2020).
//!
//! | policy | adapts |
//! |---|---|
//! | [`NoiseBatch`] | the global batch to the gradient noise scale |
//! | [`Goodput`] | the number of ranks, and the batch, as long as more ranks increase statistical progress per second |
//! | [`Deadline`] | the number of ranks to a time by which the training must end |
//! | [`Price`] | the number of ranks to the present price of a rank |
//! | [`WaitBudget`] | the error budget of `auto` to the time that ranks wait for others |
//!
//! [`Noise`] is estimated from norms that ranks send each other in every fourth step: [`Sketch`] and
//! [`NoiseScale`].
//!
//! Laws: a policy asks for nothing outside the limits that it is given, and not again for something
//! that it has asked for and that is in force.

#![forbid(unsafe_code)]
mod batch;
mod deadline;
mod goodput;
mod noise;
mod price;
mod settings;
mod sketch;
mod spec;
mod speed;
mod wait;

use std::fmt;
use std::ops::RangeInclusive;

pub use batch::{NoiseBatch, RateRule};
pub use deadline::Deadline;
pub use goodput::Goodput;
pub use noise::{Noise, NoiseScale, Part};
pub use price::Price;
pub use sketch::Sketch;
pub use spec::{InvalidPolicy, Spec};
pub use wait::WaitBudget;

/// The figures that a policy sees after a step. Times are medians of the last steps, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Number of steps that are done.
    pub step: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of ranks that was requested last; the present number if there was no request.
    pub ranks_asked: u32,
    /// Numbers of ranks that a policy may ask for; `None` if ranks cannot come and go.
    pub ranks_allowed: Option<RangeInclusive<u32>>,
    /// Rows per step, all ranks together.
    pub batch: usize,
    /// Rows per step with which the training began.
    pub first_batch: usize,
    /// Rows that the training has yet to read.
    pub rows_left: u64,
    /// Time of a step.
    pub step_s: f64,
    /// Part of a step's time in which a rank waits for others.
    pub wait_s: f64,
    /// Time since the training began.
    pub elapsed_s: f64,
    /// Noise of gradients, once it is known.
    pub noise: Option<Noise>,
    /// Error budget of `auto`; `None` if codecs were named, and during the first steps, when only a
    /// part of the budget is in force.
    pub error_budget: Option<f64>,
    /// Error budget of `auto` with which the training began.
    pub first_error_budget: f64,
}

/// Request of a policy: everything that is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adjustment {
    /// Rows per step, all ranks together.
    pub batch: Option<usize>,
    /// Factor of the learning rate with which the training began.
    pub rate: Option<f64>,
    /// Number of ranks.
    pub ranks: Option<u32>,
    /// Error budget of `auto`.
    pub error_budget: Option<f64>,
    /// Reason in a few words, for people.
    pub reason: String,
}

impl Adjustment {
    /// Returns the request for a number of ranks, unless it equals the last request.
    fn of_ranks(ranks: u32, reason: String, seen: &Observation) -> Option<Adjustment> {
        (ranks != seen.ranks_asked).then(|| Adjustment {
            ranks: Some(ranks),
            reason,
            ..Adjustment::default()
        })
    }
}

/// A rule that may ask for an [`Adjustment`] after each step.
pub trait Policy: fmt::Debug {
    /// Records a step; returns the adjustment that the policy asks for, if any.
    fn observe(&mut self, seen: &Observation) -> Option<Adjustment>;

    /// Returns whether the policy needs [`Observation::noise`], which costs a pass over all gradients.
    fn needs_noise(&self) -> bool {
        false
    }

    /// Returns whether the policy asks for numbers of ranks.
    fn resizes(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod testing {
    use super::Observation;

    /// Returns a step of one second on two of one to eight ranks.
    pub fn observation() -> Observation {
        Observation {
            step: 100,
            ranks: 2,
            ranks_asked: 2,
            ranks_allowed: Some(1..=8),
            batch: 16,
            first_batch: 16,
            rows_left: 1600,
            step_s: 1.0,
            wait_s: 0.0,
            elapsed_s: 100.0,
            noise: None,
            error_budget: None,
            first_error_budget: 0.02,
        }
    }
}
