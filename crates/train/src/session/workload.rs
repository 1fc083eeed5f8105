//! A model with its gradients, and what ranks make of it: a plan that cuts it, or replicas of the whole.

use thinwire_model::Training;
use thinwire_plan::report::PlanFile;
use thinwire_program::Plan;

use crate::error::Error;
use crate::spmd::Modality;

/// What ranks compute in every step.
pub struct Workload {
    /// The plan as it was read; none where every rank has the whole model.
    pub file: Option<PlanFile>,
    /// The model with its gradients, for one micro-batch.
    pub training: Training,
    /// The plan as it is run: of all ranks, or of one that is a replica.
    pub plan: Plan,
    /// Text or images, and how the model reads them.
    pub modality: Modality,
    /// Bytes or numbers that a prediction is made from, at most.
    pub context: usize,
    /// Words about the model for its checkpoints.
    pub description: String,
    /// Rows that every part of a batch is a multiple of: those of a model for a fixed number of rows, or 1.
    pub unit: usize,
    /// Names of the parameters of a replica that servers have.
    pub served: Vec<String>,
}

/// The whole model, for any number of rows on a rank.
#[derive(Clone, Copy)]
pub struct Replicas<'a> {
    /// Rows that every part of a batch is a multiple of.
    pub unit: usize,
    /// Returns the model for so many rows on a rank.
    pub of_rows: &'a dyn Fn(usize) -> Result<Workload, Error>,
}
