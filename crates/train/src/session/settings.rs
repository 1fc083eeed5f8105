//! Settings of a training, and the computation of its ranks.

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

/// Name of trainings whose plan determines the codecs of gradients, used in place of a codec's name.
pub const OF_PLAN: &str = "plan";

/// Settings of a training, equal on all ranks.
#[derive(Clone)]
pub struct Settings<'a> {
    /// Text or images.
    pub dataset: &'a Dataset,
    /// Rows per step, all ranks together.
    pub batch: usize,
    /// Number of all steps, including those before a checkpoint.
    pub steps: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// Learning rate of every step.
    pub rate: LearningRate,
    /// Options of the optimiser.
    pub adamw: AdamWOptions,
    /// The largest norm of the averaged gradient; `None` does not clip.
    pub gradient_norm_max: Option<f32>,
    /// Options of the exchange of gradients. The session adds the names of parameters on servers to them.
    pub exchange: ExchangeOptions,
    /// Mode in which ranks train together.
    pub mode: Mode,
    /// Whether rank 0 reports a mode that would hide the communication, if no codec does.
    pub advises: bool,
    /// Policies that adapt the training while it runs.
    pub policies: &'a [Spec],
    /// Largest number of batches in a validation.
    pub validation_batches: usize,
    /// Bandwidth of an emulated link; `None` if the link is real.
    pub link_bytes_per_s: Option<f64>,
    /// Values of parameters before the first step; `None` if they are drawn at random.
    pub weights: Option<&'a thinwire_server::Checkpoint>,
    /// Checkpoint from which the training continues.
    pub resume: Option<&'a Checkpoint>,
    /// Whether and where checkpoints are written.
    pub policy: Option<&'a Policy>,
    /// The caller's settings, which checkpoints contain.
    pub config: Value,
}

impl Settings<'_> {
    /// Returns whether a policy needs the noise of gradients; ranks then exchange sketches.
    pub(super) fn needs_noise(&self) -> bool {
        self.policies.iter().any(thinwire_policy::Policy::needs_noise)
    }
}

/// The computation of a step.
pub struct Computation {
    /// The plan as it was read; `None` if every rank has the whole model.
    pub file: Option<PlanFile>,
    /// The model with its gradients, for one micro-batch.
    pub training: Training,
    /// The plan as it is run: for all ranks, or for one rank that is a replica.
    pub plan: Plan,
    /// Text or images, and the way in which the model reads them.
    pub modality: Modality,
    /// Largest number of bytes or numbers from which a prediction is made.
    pub context: usize,
    /// Description of the model, which checkpoints contain.
    pub description: String,
    /// Every part of a batch is a multiple of this many rows: the model's own number of rows if it is
    /// fixed, and otherwise 1.
    pub unit: usize,
    /// Names of the parameters of a replica that are on servers.
    pub served: Vec<String>,
}

/// The whole model, for any number of rows on a rank.
#[derive(Clone, Copy)]
pub struct Replicas<'a> {
    /// Every part of a batch is a multiple of this many rows.
    pub unit: usize,
    /// Returns the model for this many rows on a rank.
    pub of_rows: &'a dyn Fn(usize) -> Result<Computation, Error>,
}
