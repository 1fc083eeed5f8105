//! Stretches of steps with one batch: for each, the model is built for the batch's number of rows.

use thinwire_checkpoint::FolderLock;
use thinwire_job::elastic::Due;
use thinwire_report::training::Change;
use thinwire_sync::Channel;
use thinwire_wire::World;

use super::engine::{Detached, Engine};
use super::role::Role;
use super::steps::{TrainingLoop, TrainingProgress};
use super::{Computation, Replicas, Session};
use crate::error::{Error, Kind};
use crate::rows;

/// Parts that all stretches of an epoch share.
pub(super) struct Stretches<'a> {
    /// The training.
    pub session: &'a Session<'a>,
    /// The folder of checkpoints.
    pub lock: &'a FolderLock,
    /// This rank.
    pub world: World,
    /// Connection of all ranks.
    pub channel: Channel,
    /// The model for any number of rows; `None` under a plan, whose batch does not change.
    pub replicas: Option<Replicas<'a>>,
    /// Role of the rank.
    pub role: Role<'a>,
}

/// A rank between two stretches, or before the first.
enum Standing<'a> {
    Built(Box<Engine<'a>>),
    Detached(Box<Detached>),
}

impl Stretches<'_> {
    /// Takes the steps of an epoch. Whenever the batch changes, it builds a new engine; the first engine
    /// is for `batch` rows. Passes the last stretch to `end`, with what is due after its last step.
    ///
    /// # Errors
    /// If the model cannot be built for a batch, or `end` fails.
    pub fn run<T>(
        &self,
        engine: Engine<'_>,
        batch: usize,
        mut progress: TrainingProgress,
        mut change: Option<Change>,
        end: impl FnOnce(TrainingLoop<'_>, Result<Due, Error>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Stretches { session, lock, world, role, .. } = *self;
        // A checkpoint or the other ranks may be at another batch than the one that this rank was built for.
        let mut standing = match progress.terms.batch == batch {
            true => Standing::Built(Box::new(engine)),
            false => Standing::Detached(Box::new(engine.detach())),
        };
        loop {
            let computation;
            let engine = match standing {
                Standing::Built(engine) => *engine,
                Standing::Detached(detached) => {
                    computation = self.computation(progress.terms.batch)?;
                    let channel = self.channel.clone();
                    Engine::resume(session.settings, channel, &computation, *detached)?
                }
            };
            let change = change.take();
            let training = TrainingLoop::resume(session, lock, world, engine, progress, change)?;
            let mut training = training.with_role(role);
            let ended = training.steps();
            // A stretch that ends before its epoch is followed by one with another batch.
            if !matches!(ended, Ok(Due::Step)) {
                return end(training, ended);
            }
            let detached;
            (progress, detached) = training.leave()?;
            standing = Standing::Detached(Box::new(detached));
        }
    }

    fn computation(&self, batch: usize) -> Result<Computation, Error> {
        let replicas = self.replicas.ok_or_else(|| {
            Error::new(
                Kind::Invalid,
                format!("a batch of {batch} rows, other than that of the plan"),
            )
        })?;
        (replicas.of_rows)(rows(batch, replicas.unit, self.world).len())
    }
}
