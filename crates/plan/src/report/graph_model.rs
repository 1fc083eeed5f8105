//! A plan that was found as the step that is run: its training graph, and its program's bytes.

use thinwire_model::{Training, backward};
use thinwire_program::file::PlanFile;
use thinwire_program::{Assignment, Plan, StepBytes};

use crate::Error;
use crate::search::{Outcome, Planner, Prepared};

/// A plan with the training graph that it is for.
pub(super) struct GraphModel<'a> {
    pub prepared: &'a Prepared,
    pub outcome: &'a Outcome,
    pub training: Training,
    pub plan: Plan,
    /// Bytes of an element that is not encoded.
    pub element_bytes: usize,
}

impl<'a> GraphModel<'a> {
    /// Reads the file of a planner's plan as the plan that is run.
    ///
    /// # Errors
    /// If the model has no gradients, or the planner has not made this plan.
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

    /// Returns where everything of the step works and lies, and the bytes of its programs.
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
