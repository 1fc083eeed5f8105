//! Trainings from the first step to the last, of one rank among others.
//!
//! A [`Session`] trains with one of several kinds of [`Ranks`]: a fixed number of them, with or without a
//! plan; members of an elastic job, from epoch to epoch; or workers whose parameters are on servers. All of
//! them take the same steps: a batch, gradients and their exchange, validation and checkpoints when they are
//! due, and the agreement on whether to continue. A [`GraphSession`] trains a graph neural network, pass by
//! pass. An [`Observer`] receives everything that a user sees.
//!
//! Law: the result depends only on the settings and the data, not on the observer.

mod adaptation;
mod advice;
mod checkpoints;
mod elastic;
mod engine;
mod graph;
mod log;
mod observer;
mod planned;
mod process;
mod role;
mod rounds;
mod served;
mod settings;
mod steps;
mod stretch;
mod workers;

pub use adaptation::Resizer;
pub use checkpoints::{JOB, check_folder, hold_in_all};
pub use elastic::Members;
pub use graph::GraphSession;
pub use log::{Adapted, Step};
pub use observer::{Event, Observer, Pass};
pub use planned::passes;
pub use process::{Ended, Outcome, Session, TrainedModel};
pub use served::{AfterPush, ServerSettings, Tabled};
pub use settings::{Computation, OF_PLAN, Replicas, Settings};
pub use workers::Workers;

use thinwire_checkpoint::FolderLock;
use thinwire_sync::Channel;
use thinwire_wire::Rank;

use crate::error::Error;
use engine::Engine;
use role::Role;
use rounds::LAG;
use steps::TrainingProgress;
use stretch::Stretches;

const UNCUT: &str =
    "the plan cuts nothing: every rank computes the whole step, and nothing is sent";

/// Ranks of a training, and the way in which they connect.
pub enum Ranks<'a> {
    /// A fixed number of ranks, which are connected.
    Fixed {
        /// Connection of all ranks.
        channel: Channel,
        /// The model, or its plan.
        computation: &'a Computation,
        /// The model for any number of rows, for policies that change the batch; `None` under a plan.
        replicas: Option<Replicas<'a>>,
        /// The folder of checkpoints.
        lock: &'a FolderLock,
    },
    /// Members of an elastic job.
    Elastic(Members<'a>),
    /// Workers of a job whose servers have parameters.
    Workers(Workers<'a>),
}

impl Session<'_> {
    /// Trains until the last step, or until this process leaves.
    ///
    /// # Errors
    /// If the settings are contradictory, a rank is lost without which the job cannot continue, or a
    /// checkpoint before the last cannot be written.
    pub fn run(&self, ranks: Ranks<'_>) -> Result<Ended, Error> {
        match ranks {
            Ranks::Fixed { channel, computation, replicas, lock } => {
                let outcome = self.fixed(channel, computation, replicas, lock)?;
                Ok(Ended::Over(self.place.clone(), Box::new(outcome)))
            }
            Ranks::Elastic(members) => elastic::train(self, members),
            Ranks::Workers(workers) => workers::train(self, workers),
        }
    }

    fn fixed(
        &self,
        channel: Channel,
        computation: &Computation,
        replicas: Option<Replicas<'_>>,
        lock: &FolderLock,
    ) -> Result<Outcome, Error> {
        let world = channel.world();
        let mut engine = Engine::in_mode(self.settings, channel.clone(), computation, LAG)?;
        let is_idle = computation.file.is_some() && engine.executor.program().raw_bytes() == 0;
        if is_idle && world.size() > 1 && world.rank() == Rank(0) {
            self.say(UNCUT)?;
        }
        let first = self.settings.resume.map_or(0, |found| found.progress().step);
        let mut progress = TrainingProgress::new(first, self.settings);
        if let Some(checkpoint) = self.settings.resume {
            progress.resume(checkpoint, self.load(checkpoint, &mut engine, world)?);
        }
        let role = Role::Fixed;
        let stretches = Stretches { session: self, lock, world, channel, replicas, role };
        stretches.run(engine, self.settings.batch, progress, None, |training, ended| {
            ended?;
            training.finish()
        })
    }
}
