//! The step that a plan describes, as it is run: its training graph, and the bytes of its programs.

use thinwire_model::{Training, backward};
use thinwire_program::file::PlanFile;
use thinwire_program::{Assignment, Plan, StepBytes};

use crate::Error;
use crate::search::{Outcome, Planner, Prepared};

/// A plan with its training graph.
pub(super) struct GraphModel<'a> {
    pub prepared: &'a Prepared,
    pub outcome: &'a Outcome,
    pub training: Training,
    pub plan: Plan,
    /// Bytes of an element that is not encoded.
    pub element_bytes: usize,
}

impl<'a> GraphModel<'a> {
    /// Reads the plan file of a planner's plan, as a training does.
    ///
    /// # Errors
    /// If the model has no gradients, or this planner has not made the plan.
    pub fn new(
        planner: &'a Planner,
        outcome: &'a Outcome,
        file: &PlanFile,
    ) -> Result<GraphModel<'a>, Error> {
        let prepared = planner.prepared_of(outcome)?;
        let training = backward(&prepared.graph).map_err(|error| Error::from_model(&error))?;
        let plan = Plan::of_file(file, &prepared.graph)?;
        let element_bytes = planner.settings().precision.element as usize;
        Ok(GraphModel { prepared, outcome, training, plan, element_bytes })
    }

    /// Returns the strategies and layouts of the whole step, and the bytes of its programs.
    ///
    /// # Errors
    /// If the plan cannot be run.
    pub fn step(&self) -> Result<(Assignment<'_>, StepBytes), Error> {
        self.plan.check(&self.training)?;
        let assignment = Assignment::new(&self.training, &self.plan);
        let bytes = StepBytes::of_assignment(&assignment, self.element_bytes)?;
        Ok((assignment, bytes))
    }
}
