//! Observers: they receive the events of a training that a user sees.

use thinwire_report::training::{Adjusted, Change, Passed};
use thinwire_wire::World;

use super::log::Step;
use super::settings::Computation;
use crate::error::Error;
use crate::gnn::Figures;

/// Receiver of the events of a training that a user sees.
pub trait Observer {
    /// Handles an event.
    ///
    /// # Errors
    /// Any error ends the training.
    fn on(&self, event: Event<'_>) -> Result<(), Error>;

    /// Returns the most bytes by which the process has grown since the last [`Event::Begun`], if this is
    /// known.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// Observer that ignores all events.
impl Observer for () {
    fn on(&self, _: Event<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// Events of a training, on all ranks unless stated otherwise.
pub enum Event<'a> {
    /// A line for the user, sent on one rank.
    Line(String),
    /// A line about this process in its job.
    OfProcess(String),
    /// A failure that does not end the training, on one rank.
    Warning(Error),
    /// The training continues from a checkpoint, on rank 0.
    Resumed {
        /// The model, or its plan.
        computation: &'a Computation,
        /// Number of ranks.
        ranks: u32,
    },
    /// Some or all parameters are on servers. Sent on rank 0, before the first epoch begins.
    Served {
        /// Bytes that a rank pushes in a step, counting values as f32.
        raw_bytes: u64,
    },
    /// The training or an epoch begins.
    Begun {
        /// This rank.
        world: World,
        /// The model, or its plan.
        computation: &'a Computation,
        /// Steps that are done.
        done: u64,
        /// Steps of the whole training.
        steps: u64,
        /// Whether this is the beginning of the training in this process, also from a checkpoint, and not
        /// of a later epoch.
        is_first: bool,
    },
    /// A step was taken.
    Step {
        /// The step.
        step: &'a Step,
        /// Returns the times of this rank's passes in the step, if it has a part of a plan.
        passes: &'a dyn Fn() -> Vec<Passed>,
    },
    /// The first step of an epoch has ended.
    Changed(&'a Change),
    /// A policy has made a request, on rank 0.
    Adjusted(&'a Adjusted),
    /// A step has ended, with its validation if one was due.
    Reached {
        /// The step.
        step: &'a Step,
        /// Recent seconds per step.
        step_s: f64,
        /// Bytes per step that this rank has sent recently.
        sent_bytes: f64,
        /// The validation loss, if it was measured after this step.
        validation: Option<f64>,
    },
    /// A pass of a graph training has ended.
    Pass(&'a Pass),
    /// The training or the epoch is over.
    Ended,
}

/// Figures of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Number of the pass, from 1.
    pub number: u64,
    /// Figures of the training vertices; each step's figures are computed before its update.
    pub trained: Figures,
    /// Figures of the vertices for validation, if there are any.
    pub validated: Option<Figures>,
    /// Seconds of training.
    pub seconds: f64,
    /// Seconds of training in which the rank waited for batches.
    pub loading_s: f64,
    /// Seconds of training in which the rank waited for gradients of other ranks.
    pub wait_s: f64,
    /// Bytes that this rank sent.
    pub sent_bytes: u64,
}
