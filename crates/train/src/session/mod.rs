//! Trainings from the first step to the last, of one rank among others.
//!
//! A [`Session`] trains in one of several [`Ranks`]: a fixed number of them, with or without a plan; members of an
//! elastic job, from epoch to epoch; or workers whose parameters are on servers. All of them take the same steps: a
//! batch, gradients and their exchange, validation and checkpoints where they are due, and the agreement on whether to
//! continue. A [`GraphSession`] trains a graph neural network, pass by pass. What a user sees goes to an [`Observer`].
//!
//! Law: the result depends on the settings and the data alone, not on the observer.

mod checkpoints;
mod elastic;
mod engine;
mod graph;
mod log;
mod observer;
mod planned;
mod role;
mod served;
mod steps;
mod workers;
mod workload;

pub use checkpoints::{JOB, check_folder, hold_in_all};
pub use elastic::Members;
pub use graph::{GraphSession, Pass};
pub use log::Step;
pub use observer::{Event, Observer};
pub use planned::passes;
pub use served::{AfterPush, ServerSettings, Tabled};
pub use workers::Workers;
pub use workload::{Replicas, Workload};

use std::collections::BTreeMap;

use serde_json::Value;
use thinwire_checkpoint::{FolderLock, Policy};
use thinwire_job::{Interrupt, Place};
use thinwire_report::training::Run;
use thinwire_sync::Channel;
use thinwire_wire::{Rank, World};

use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::spmd::{ExchangeOptions, Modality};
use crate::{AdamWOptions, Dataset, LearningRate};
use engine::Engine;
use steps::{TrainingLoop, TrainingProgress};

/// Name of trainings whose gradients travel as a plan says, in the place of a codec's.
pub const OF_PLAN: &str = "plan";

const UNCUT: &str =
    "the plan cuts nothing: every rank computes the whole step, and nothing is sent";

/// Settings of a training, alike on all ranks.
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

/// Training of one process.
pub struct Session<'a> {
    /// Settings of all ranks.
    pub settings: &'a Settings<'a>,
    /// Place of this process; those whose number of ranks changes have their rank from their epochs.
    pub place: &'a Place,
    /// Signals.
    pub interrupt: &'a Interrupt,
    /// Sink of what a user sees.
    pub observer: &'a dyn Observer,
}

/// Ranks of a training, and how they come together.
pub enum Ranks<'a> {
    /// A fixed number of ranks, which have met.
    Fixed {
        /// Connection of all ranks.
        channel: Channel,
        /// The model, or its plan.
        workload: &'a Workload,
        /// The folder of checkpoints.
        lock: &'a FolderLock,
    },
    /// Members of an elastic job.
    Elastic(Members<'a>),
    /// Workers of a job whose servers keep parameters.
    Workers(Workers<'a>),
}

/// End of a training for one process.
#[derive(Debug)]
pub enum Ended {
    /// The training is over; the place is that in the last epoch.
    Over(Place, Box<Outcome>),
    /// The process has left a training that continues.
    Left,
    /// Nobody continues with the training, and this process has saved what it had.
    Alone,
}

/// Result of a training, complete on rank 0 only.
#[derive(Debug)]
pub struct Outcome {
    /// Figures of all steps.
    pub run: Run,
    /// Whether the last checkpoint, where one was asked for, could be written.
    pub saved: Result<(), Error>,
    /// The trained model.
    pub model: TrainedModel,
    /// Text or images, and how the model reads them on this rank.
    pub modality: Modality,
}

/// Values of a model after the last step.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainedModel {
    /// Rank 0 has them, or the training was stopped.
    Elsewhere,
    /// Ranks have parts of them.
    InParts,
    /// All parameters by name.
    Whole(BTreeMap<String, Vec<f32>>),
}

impl Session<'_> {
    /// Trains until the last step, or until this process leaves.
    ///
    /// # Errors
    /// If settings are impossible, a rank is lost that the job cannot do without, or a checkpoint before the last
    /// cannot be written.
    pub fn run(&self, ranks: Ranks<'_>) -> Result<Ended, Error> {
        match ranks {
            Ranks::Fixed { channel, workload, lock } => {
                let outcome = self.fixed(channel, workload, lock)?;
                Ok(Ended::Over(self.place.clone(), Box::new(outcome)))
            }
            Ranks::Elastic(members) => elastic::train(self, members),
            Ranks::Workers(workers) => workers::train(self, workers),
        }
    }

    fn fixed(
        &self,
        channel: Channel,
        workload: &Workload,
        lock: &FolderLock,
    ) -> Result<Outcome, Error> {
        let world = channel.world();
        let mut engine = Engine::start(self.settings, channel, workload, self.settings.weights)?;
        let is_idle = workload.file.is_some() && engine.executor.program().raw_bytes() == 0;
        if is_idle && world.size() > 1 && world.rank() == Rank(0) {
            self.say(UNCUT)?;
        }
        let first = self.settings.resume.map_or(0, |found| found.progress().step);
        let mut progress = TrainingProgress::new(first);
        if let Some(checkpoint) = self.settings.resume {
            progress.position = self.load(checkpoint, &mut engine, world)?;
        }
        let mut training = TrainingLoop::resume(self, lock, world, engine, progress, None)?;
        training.steps()?;
        training.finish()
    }

    /// Says a line to the user.
    fn say(&self, line: impl Into<String>) -> Result<(), Error> {
        self.observer.on(Event::Line(line.into()))
    }

    /// Says a line about this process.
    fn say_of_process(&self, line: impl Into<String>) -> Result<(), Error> {
        self.observer.on(Event::OfProcess(line.into()))
    }

    /// Returns the place of this process in an epoch.
    fn place_in(&self, world: World) -> Place {
        Place { rank: world.rank().0, world: world.size() as u32, ..self.place.clone() }
    }
}
