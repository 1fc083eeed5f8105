//! Training with all or some parameters on servers.
//!
//! Each rank computes the gradients of its part of the batch, pushes them, and pulls the parameters for its
//! next step. With all parameters on servers, ranks exchange nothing with each other. The servers bound how
//! far one rank may be ahead of another, ranks may join and leave, and each epoch divides the batch again.
//! In hybrid mode, the ranks average the gradients of the other parameters in the same step, and the loss
//! of one rank ends the job.
//!
//! Law: with `--consistency sync`, losses equal the losses of all-reduce training with the same optimiser,
//! except for the order of summation.

use std::time::Duration;

use serde_json::{Map, Value};
use thinwire_checkpoint::FolderLock;
use thinwire_collective::Group;
use thinwire_job::Place;
use thinwire_job::elastic::{Due, JobAddress, Operator, Presence};
use thinwire_link::mem;
use thinwire_member::{Epoch, Id};
use thinwire_server::Origin;
use thinwire_sync::Channel;
use thinwire_wire::{Rank, World};

use super::engine::{Detached, Engine};
use super::role::{Role, change};
use super::served::{AfterPush, Served, ServerSettings};
use super::steps::{About, TrainingLoop, TrainingProgress};
use super::{Computation, Ended, Event, Outcome, Replicas, Session, check_folder};
use crate::error::{Error, Kind};
use crate::{Sampler, rows};

/// Interval at which a rank that has finished checks whether the others have.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Name of the figure by which a rank reports that it has finished its steps.
const DONE: &str = "done";

/// Workers of a job whose servers have parameters, with everything that their epochs share.
pub struct Workers<'a> {
    /// The model.
    pub replicas: Replicas<'a>,
    /// Settings of the servers.
    pub servers: &'a ServerSettings,
    /// Names of the parameters on servers.
    pub served: &'a [String],
    /// Files with which the job begins, if there are any.
    pub origin: Option<&'a Origin>,
    /// Address of the job.
    pub address: &'a JobAddress,
    /// Connection to the coordinator.
    pub presence: &'a Presence,
    /// The first epoch of this process.
    pub epoch: Epoch,
    /// Returns the function that rank 0 calls after each push.
    pub after_push: &'a dyn Fn() -> Option<AfterPush>,
}

/// Rank that trains with servers.
struct Worker<'a> {
    session: &'a Session<'a>,
    workers: &'a Workers<'a>,
}

/// State of a rank that is kept from epoch to epoch.
#[derive(Default)]
struct Kept {
    /// Replica and progress of the training; `None` before the first epoch.
    replica: Option<(TrainingProgress, Detached)>,
    /// Parameters on servers; `None` before the first epoch.
    served: Option<Served>,
    members: Vec<Id>,
}

/// Trains in successive epochs.
///
/// # Errors
/// If this process is in no epoch, a shard is lost, or in hybrid mode another rank is lost.
pub(super) fn train(session: &Session<'_>, workers: Workers<'_>) -> Result<Ended, Error> {
    let worker = Worker { session, workers: &workers };
    let (mut kept, mut epoch) = (Kept::default(), workers.epoch.clone());
    loop {
        let world = epoch.world(workers.presence.id());
        let world =
            world.ok_or_else(|| Error::new(Kind::Exchange, "this process is not in the epoch"))?;
        if let Some(outcome) = worker.epoch(&epoch, world, &mut kept)? {
            // Servers do not wait for a client that is gone, but for one that is idle.
            drop(kept);
            let mut place = session.place_in(world);
            if session.interrupt.signal().is_none() {
                place = worker.finish(place);
            }
            return Ok(Ended::Over(place, Box::new(outcome)));
        }
        // The session has ended because the next epoch has begun.
        epoch = workers.presence.epoch().unwrap_or(epoch);
    }
}

impl Worker<'_> {
    /// Trains in one epoch. Returns the result of the training if it has ended.
    fn epoch(
        &self,
        epoch: &Epoch,
        world: World,
        kept: &mut Kept,
    ) -> Result<Option<Outcome>, Error> {
        let Worker { session, workers } = *self;
        let settings = session.settings;
        let speaks = world.rank() == Rank(0);
        let lock = self.hold(epoch, world)?;
        let mine = rows(settings.batch, workers.replicas.unit, world).len();
        let computation = (workers.replicas.of_rows)(mine)?;
        let computation = Computation { served: workers.served.to_vec(), ..computation };
        let channel = self.channel(epoch)?;
        let is_first = kept.replica.is_none();
        let (mut engine, progress) =
            self.begin(epoch, world, channel, &computation, kept.replica.take())?;
        let served = match kept.served.take() {
            Some(served) => served,
            None => {
                let (seed, timeout) = (settings.seed, settings.exchange.sync.timeout);
                let (servers, address) = (workers.servers, workers.address);
                Served::open(servers, workers.origin, seed, &engine, address, timeout)?
            }
        };
        served.set_after_push(if speaks { (workers.after_push)() } else { None });
        engine.executor = served.attach(engine.executor, mine as f32 / settings.batch as f32)?;
        let is_first = is_first && progress.done() == 0;
        if is_first && speaks {
            session.observer.on(Event::Served { raw_bytes: served.raw_bytes() })?;
        }
        let change = (!is_first).then(|| change(epoch, &kept.members));
        let mut training = TrainingLoop::resume(session, &lock, world, engine, progress, change)?;
        if !workers.servers.is_hybrid {
            training = training.with_role(Role::Worker(workers.presence, epoch.number));
        }
        (kept.members, kept.served) = (epoch.members.clone(), Some(served.clone()));
        if training.steps()? == Due::Change {
            kept.replica = Some(training.leave()?);
            return Ok(None);
        }
        if session.interrupt.signal().is_none() {
            let step = training.done();
            session.say_of_process(format!(
                "all {step} steps are done here: waiting for the others"
            ))?;
        }
        let mut outcome = training.finish()?;
        outcome.run.raw_bytes += served.raw_bytes() as f64;
        outcome.run.sent_bytes += served.step_bytes() as f64;
        // The limit of a link is between ranks.
        outcome.run.floors.wire_s = outcome.run.floors.wire_s.filter(|floor_s| *floor_s > 0.0);
        Ok(Some(outcome))
    }

    /// Returns the replica and the progress of the training for an epoch: those of the previous epoch, or new
    /// ones that begin at the job's current step.
    fn begin<'b>(
        &self,
        epoch: &Epoch,
        world: World,
        channel: Channel,
        computation: &'b Computation,
        replica: Option<(TrainingProgress, Detached)>,
    ) -> Result<(Engine<'b>, TrainingProgress), Error> {
        let Worker { session, workers } = *self;
        let settings = session.settings;
        if let Some((progress, mut detached)) = replica {
            detached.reform(&channel)?;
            return Ok((Engine::resume(settings, channel, computation, detached)?, progress));
        }
        let is_hybrid = workers.servers.is_hybrid;
        let weights = match workers.origin {
            Some(Origin::Checkpoint(checkpoint)) if is_hybrid => Some(checkpoint),
            _ => settings.weights,
        };
        let mut engine = Engine::start(settings, channel, computation, weights)?;
        let done = if is_hybrid { 0 } else { epoch.done.min(settings.steps) };
        let mut progress = TrainingProgress::new(done, settings);
        if done > 0 {
            let sampling = engine.sampling(settings, world);
            let mut sampler = Sampler::new(settings.dataset.clone(), sampling)?;
            sampler.skip(done);
            let (position, terms) = (sampler.position(), progress.terms);
            progress.seek(done, About { first: done, position, terms });
            engine.executor.seek(done);
            session.say_joined(epoch.number, world, done)?;
        }
        Ok((engine, progress))
    }

    /// Returns the channel among the ranks of an epoch, or one of this rank alone if all parameters are on
    /// servers.
    fn channel(&self, epoch: &Epoch) -> Result<Channel, Error> {
        let settings = self.session.settings;
        let timeout = settings.exchange.sync.timeout;
        if !self.workers.servers.is_hybrid {
            return Ok(Channel::new(Group::new(mem::alone()).with_timeout(timeout)));
        }
        let link = self.workers.presence.meet(epoch)?.ok_or_else(|| {
            let number = epoch.number;
            let message = format!("epoch {number} has ended before its ranks had met");
            Error::new(Kind::Exchange, message)
        })?;
        let mut group = Group::new(link).with_timeout(timeout);
        check_folder(settings.policy, &mut group)?;
        Ok(Channel::new(group))
    }

    /// Locks the folder of checkpoints on rank 0 of an epoch.
    fn hold(&self, epoch: &Epoch, world: World) -> Result<FolderLock, Error> {
        let (policy, rank) = (self.session.settings.policy, world.rank().0);
        let lock = match epoch.number {
            1 => FolderLock::hold(policy, rank, None)?,
            _ => FolderLock::hold_again(policy, rank),
        };
        Ok(lock.of_epoch(&epoch.coordinator.to_string(), epoch.number))
    }

    /// Waits until all ranks have finished, which ends the job; a signal ends the wait. If ranks have
    /// joined or left since the first epoch, other ranks may have more steps to do. Servers must not
    /// wait for this rank in those steps, so it leaves, unless it is the last. Returns its rank and the
    /// number of ranks in the last epoch; a rank that leaves before others never has rank 0.
    fn finish(&self, place: Place) -> Place {
        let Worker { session, workers } = *self;
        let (presence, first) = (workers.presence, workers.epoch.number);
        presence.tell(Map::from_iter([(DONE.to_owned(), Value::Bool(true))]));
        let mut operator = None;
        while !presence.is_over() && presence.refusal().is_none() {
            let is_done = self.all_are_done(&mut operator);
            let epoch = presence.epoch();
            let continues = epoch.is_some_and(|it| it.number > first && it.members.len() > 1);
            let leaves = continues && workers.servers.waits() && !is_done;
            if session.interrupt.signal().is_some() || leaves {
                presence.leave();
                return Place { rank: place.rank.max(1), ..place };
            }
            if is_done {
                // Another rank may have reported it already.
                let _ = presence.complete();
                break;
            }
            std::thread::sleep(ASK_EVERY);
        }
        let world = presence.epoch().and_then(|it| it.world(presence.id()));
        Place { rank: world.map_or(place.rank, |world| world.rank().0), ..place }
    }

    /// Returns whether all ranks have reported that they have finished; false while the coordinator does
    /// not answer.
    fn all_are_done(&self, operator: &mut Option<Operator>) -> bool {
        let JobAddress { coordinator, token, .. } = self.workers.address;
        let connect = || Operator::connect(coordinator, token, ASK_EVERY).ok();
        let Some(mut connected) = operator.take().or_else(connect) else { return false };
        let Ok(status) = connected.status() else { return false };
        *operator = Some(connected);
        let status = serde_json::from_str::<Value>(&status).unwrap_or_default();
        let members = status["members"].as_array();
        members.is_some_and(|all| all.iter().all(|it| it["figures"][DONE] == true))
    }
}
