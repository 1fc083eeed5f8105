//! Settings of a training, and what its ranks compute.

use serde_json::Value;
use thinwire_checkpoint::Policy;
use thinwire_model::Training;
use thinwire_plan::report::PlanFile;
use thinwire_policy::Spec;
use thinwire_program::Plan;
use thinwire_sync::Mode;

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::spmd::{ExchangeOptions, Modality};
use crate::{AdamWOptions, Dataset, LearningRate};

/// Name of trainings whose gradients travel as a plan says, in the place of a codec's.
pub const OF_PLAN: &str = "plan";

/// Settings of a training, alike on all ranks.
#[derive(Clone)]
pub struct Settings<'a> {
    /// Text or images.
    pub dataset: &'a Dataset,
    /// Rows per step, all ranks together.
    pub batch: usize,
    /// All steps, those before a checkpoint included.
    pub steps: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// Learning rate of every step.
    pub rate: LearningRate,
    /// Options of the optimiser.
    pub adamw: AdamWOptions,
    /// The greatest norm of the averaged gradient; none does not clip.
    pub gradient_norm_max: Option<f32>,
    /// Exchange of gradients; the names of parameters on servers are added to it.
    pub exchange: ExchangeOptions,
    /// How ranks train together.
    pub mode: Mode,
    /// Whether rank 0 says which other mode would hide what ranks send, where no codec does.
    pub advises: bool,
    /// Policies that adapt the training while it runs.
    pub policies: &'a [Spec],
    /// Most batches of a validation.
    pub validation_batches: usize,
    /// Bandwidth of an emulated link.
    pub link_bytes_per_s: Option<f64>,
    /// Values of parameters before the first step, if they are not drawn.
    pub weights: Option<&'a thinwire_server::Checkpoint>,
    /// Where training continues from.
    pub resume: Option<&'a Checkpoint>,
    /// Whether and where checkpoints are written.
    pub policy: Option<&'a Policy>,
    /// Settings that checkpoints keep for the caller.
    pub config: Value,
}

impl Settings<'_> {
    /// Whether a policy needs the noise of gradients, of which ranks then tell each other.
    pub(super) fn needs_noise(&self) -> bool {
        self.policies.iter().any(thinwire_policy::Policy::needs_noise)
    }
}

/// What ranks compute in every step.
pub struct Computation {
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
    pub of_rows: &'a dyn Fn(usize) -> Result<Computation, Error>,
}
