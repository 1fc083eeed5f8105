//! Training with all or some parameters on servers.
//!
//! Each rank computes the gradients of its part of the batch, pushes them, and pulls the parameters for its
//! next step. With all parameters on servers, ranks exchange nothing with each other: the servers bound how
//! far one may be ahead of another, ranks may join and leave, and each epoch divides the batch anew. In
//! hybrid mode, the ranks average the gradients of the other parameters in the same step, and the loss of one
//! rank ends the job.
//!
//! Law: with `--consistency sync`, losses equal those of all-reduce training with the same optimiser, except
//! for the order of summation.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value};
use thinwire_checkpoint::FolderLock;
use thinwire_collective::Group;
use thinwire_job::Place;
use thinwire_job::elastic::{self, Due, Operator, Presence};
use thinwire_link::mem;
use thinwire_member::{CoordinatorMode, Epoch, Id, Options};
use thinwire_report::figures;
use thinwire_server::Origin;
use thinwire_sync::{Channel, Policy};
use thinwire_train::spmd::DetachedReplica;
use thinwire_train::{Sampler, rows};
use thinwire_wire::{WORLD_SIZE_MAX, World};

use super::engine::Engine;
use super::first_epoch::first_epoch;
use super::interrupt::Interrupt;
use super::job::TrainingJob;
use super::job_role::{JobRole, Seat, change, of_member};
use super::messages;
use super::plan::{Built, Parallelism};
use super::served::Served;
use super::server_flags::{self, ServerMode};
use super::session::{About, Session, TrainingProgress};
use super::trace::Trace;
use super::{Trained, checkpoints, conclude, snapshots};
use crate::output::say;

/// Interval at which a rank that has finished asks whether the others have.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Figure that a rank reports when it has finished its steps.
const DONE: &str = "done";

/// Trains with servers. The first rank that is left at the end prints the result. Returns the exit code.
///
/// # Errors
/// If the job or its servers refuse this process, a shard is lost, or in hybrid mode another rank is lost.
pub fn train(job: &TrainingJob, mode: &ServerMode, seat: &elastic::JobAddress) -> Result<u8> {
    let settings = &job.settings;
    let place = of_member(seat);
    job.export_metrics(&place)?;
    let interrupt = Interrupt::listen()?;
    let links = settings.link.of_job(settings.limit(&place))?;
    let options = Options::new(CoordinatorMode::Saved, 1, WORLD_SIZE_MAX);
    let mut facts = job.facts();
    facts.extend(mode.facts());
    if mode.is_hybrid() {
        let exchange = job.exchange.described().into_iter();
        facts.extend(exchange.map(|(name, value)| (name.to_owned(), value)));
    }
    let origin = mode.snapshots.origin()?;
    let joining = messages::joining(&seat.coordinator);
    let presence = Presence::join(seat, &links, options, facts)?;
    drop(joining);
    messages::waiting(&seat.coordinator, seat.id);
    let ranks = mode.is_hybrid().then_some(mode.ranks);
    let epoch = first_epoch(&presence, seat, ranks, settings.link.timeout())?;
    interrupt.remember();
    let codec = job.codec.clone().filter(|_| mode.is_hybrid());
    let codec = codec.map_or_else(|| "none".parse(), Ok)?;
    let (presence, interrupt, origin) = (&presence, &interrupt, origin.as_ref());
    let worker = Worker { job, mode, origin, seat, presence, interrupt, codec };
    let threads = settings.threads(&place);
    let first = epoch.number;
    let (place, trained) = thinwire_train::with_threads(threads, || worker.train(&place, epoch))?;
    if trained.is_ok() && interrupt.signal().is_none() {
        let place = worker.finish(place, first);
        return conclude(job, &place, trained, interrupt);
    }
    let code = conclude(job, &place, trained, interrupt)?;
    presence.leave();
    Ok(code)
}

/// Rank that trains with servers.
struct Worker<'a> {
    job: &'a TrainingJob,
    mode: &'a ServerMode,
    /// Files with which the job begins, if there are any.
    origin: Option<&'a Origin>,
    seat: &'a elastic::JobAddress,
    presence: &'a Presence,
    interrupt: &'a Interrupt,
    /// Codec of gradients between ranks; raw if all parameters are on servers.
    codec: Policy,
}

/// State of a rank that is kept from epoch to epoch.
#[derive(Default)]
struct Kept {
    /// Replica and progress of the training; `None` before the first epoch.
    replica: Option<(TrainingProgress, DetachedReplica)>,
    /// Parameters on servers; `None` before the first epoch.
    served: Option<Served>,
    members: Vec<Id>,
}

impl Worker<'_> {
    /// Trains in successive epochs. Also returns the place in the last one.
    fn train(&self, place: &Place, mut epoch: Epoch) -> (Place, Result<Trained>) {
        let mut kept = Kept::default();
        loop {
            let Some(world) = epoch.world(self.presence.id()) else {
                return (place.clone(), Err(anyhow!("an epoch without this process")));
            };
            let place = Place { rank: world.rank().0, world: world.size() as u32, ..place.clone() };
            match self.epoch(&place, &epoch, world, &mut kept) {
                Ok(None) => {}
                Ok(Some(trained)) => return (place, Ok(trained)),
                Err(error) => return (place, Err(error)),
            }
            // The session has ended because the next epoch has begun.
            epoch = self.presence.epoch().unwrap_or(epoch);
        }
    }

    /// Trains in one epoch. Returns the result of the training if it has ended.
    fn epoch(
        &self,
        place: &Place,
        epoch: &Epoch,
        world: World,
        kept: &mut Kept,
    ) -> Result<Option<Trained>> {
        let job = self.job;
        let Parallelism::Replicas(model) = &job.parallelism else {
            return Err(anyhow!("a training of parts of a plan with servers"));
        };
        let lock = self.hold(place.rank, epoch)?;
        let seat = Seat { place, interrupt: self.interrupt, lock: &lock };
        let mine = rows(job.recipe.batch, model.unit()?, world).len();
        let mut built = Built::replica(model, mine)?;
        let names: Vec<String> =
            built.training.graph.parameters().map(|(_, tensor)| tensor.name.clone()).collect();
        built.served = self.mode.served(&names)?;
        let channel = self.channel(epoch, place.rank)?;
        let is_first = kept.replica.is_none();
        let (mut engine, reached) =
            self.begin(epoch, &seat, channel, &built, kept.replica.take())?;
        let served = match kept.served.take() {
            Some(served) => served,
            None => {
                let (seed, timeout) = (job.recipe.seed, job.settings.link.timeout());
                Served::open(self.mode, self.origin, seed, &engine, self.seat, timeout)?
            }
        };
        served.ask(self.mode.snapshots.asker(self.seat).filter(|_| place.rank == 0));
        engine.machine = served.attach(engine.machine, mine as f32 / job.recipe.batch as f32)?;
        let title =
            (is_first && reached.done() == 0).then(|| engine.title(job, Some(&self.codec), &seat));
        if title.is_some() && place.rank == 0 {
            self.tell_begin(&names, &built.served, served.raw_bytes());
        }
        let change = title.is_none().then(|| change(epoch, &kept.members));
        let mut session = Session::resume(job, title.as_deref(), engine, &seat, reached)?;
        if !self.mode.is_hybrid() {
            session = session.of_epoch(JobRole::Worker(self.presence, epoch.number), change);
        }
        (kept.members, kept.served) = (epoch.members.clone(), Some(served.clone()));
        if session.steps()? == Due::Change {
            kept.replica = Some(session.leave());
            return Ok(None);
        }
        if self.interrupt.signal().is_none() {
            messages::done(session.done());
        }
        let (mut run, saved) = session.finish()?;
        run.raw_bytes += served.raw_bytes() as f64;
        run.sent_bytes += served.step_bytes() as f64;
        Ok(Some(Trained { runs: vec![run], file: None, kept: saved }))
    }

    /// Says with what the training begins, and where its parameters are if they are not all in one place.
    fn tell_begin(&self, names: &[String], served: &[String], bytes: u64) {
        let others = names.len() - served.len();
        let partial = snapshots::warning(self.origin, others);
        let warnings = self.codec.warnings().into_iter().chain(partial);
        warnings.for_each(|it| say(format!("warning: {it}")));
        self.origin.into_iter().for_each(|origin| say(snapshots::beginning(origin)));
        if self.mode.is_hybrid() {
            let shown = server_flags::shown(served);
            let (on, all, bytes) = (served.len(), names.len(), figures::bytes(bytes as f64));
            say(format!("{on} of {all} parameters are on servers ({bytes}): {shown}"));
        }
    }

    /// Returns the replica and the progress of the training for an epoch: those of the previous epoch, or new
    /// ones that begin where the job is.
    fn begin<'b>(
        &self,
        epoch: &Epoch,
        seat: &Seat<'_>,
        channel: Channel,
        built: &'b Built,
        replica: Option<(TrainingProgress, DetachedReplica)>,
    ) -> Result<(Engine<'b>, TrainingProgress)> {
        let (job, codec) = (self.job, Some(&self.codec));
        if let Some((reached, mut detached)) = replica {
            detached.reform(&channel)?;
            return Ok((Engine::resume(job, codec, seat, channel, built, detached)?, reached));
        }
        let is_hybrid = self.mode.is_hybrid();
        let weights = match self.origin {
            Some(Origin::Checkpoint(checkpoint)) if is_hybrid => Some(checkpoint),
            _ => job.weights.as_ref(),
        };
        let mut engine = Engine::start(job, codec, seat, channel, built, weights)?;
        let done = if is_hybrid { 0 } else { epoch.done.min(job.recipe.steps) };
        let mut reached = TrainingProgress::new(codec, Trace::default(), done);
        if done > 0 {
            let world = World::new(seat.place.rank, seat.place.world)?;
            let mut sampler = Sampler::new(job.dataset.clone(), engine.sampling(job, world))?;
            sampler.skip(done);
            reached.seek(done, About { first: done, position: sampler.position() });
            engine.machine.seek(done);
            messages::joined(epoch.number, world, done);
        }
        Ok((engine, reached))
    }

    /// Returns the channel among the ranks of an epoch, or one of this rank alone if all parameters are on
    /// servers.
    fn channel(&self, epoch: &Epoch, rank: u32) -> Result<Channel> {
        let timeout = self.job.settings.link.timeout();
        if !self.mode.is_hybrid() {
            return Ok(Channel::new(Group::new(mem::alone()).with_timeout(timeout)));
        }
        let link = self.presence.meet(epoch)?;
        let link = link.with_context(|| {
            format!("epoch {} has ended before its ranks had met", epoch.number)
        })?;
        let mut group = Group::new(link).with_timeout(timeout);
        checkpoints::check_folder(self.job.policy.as_ref(), rank, &mut group)?;
        Ok(Channel::new(group))
    }

    /// Locks the folder of checkpoints on rank 0 of an epoch.
    fn hold(&self, rank: u32, epoch: &Epoch) -> Result<FolderLock> {
        let policy = self.job.policy.as_ref();
        let lock = match epoch.number {
            1 => FolderLock::hold(policy, rank, None)?,
            _ => FolderLock::hold_again(policy, rank),
        };
        Ok(lock.of_epoch(&epoch.coordinator.to_string(), epoch.number))
    }

    /// Waits until all ranks have finished, which ends the job; a signal ends the wait. If ranks have joined
    /// or left since epoch `first`, others may have more steps to do, and servers must not wait for this rank
    /// in them: it leaves, unless it is the last. Returns the place in the last epoch, where a rank that
    /// leaves before others never has rank 0.
    fn finish(&self, place: Place, first: u32) -> Place {
        self.presence.tell(Map::from_iter([(DONE.to_owned(), Value::Bool(true))]));
        let mut operator = None;
        while !self.presence.is_over() && self.presence.refusal().is_none() {
            let is_done = self.all_are_done(&mut operator);
            let epoch = self.presence.epoch();
            let goes_on = epoch.is_some_and(|it| it.number > first && it.members.len() > 1);
            if self.interrupt.signal().is_some() || (goes_on && self.mode.waits() && !is_done) {
                self.presence.leave();
                return Place { rank: place.rank.max(1), ..place };
            }
            if is_done {
                // Another rank may have reported it already.
                let _ = self.presence.complete();
                break;
            }
            std::thread::sleep(ASK_EVERY);
        }
        let world = self.presence.epoch().and_then(|it| it.world(self.presence.id()));
        Place { rank: world.map_or(place.rank, |world| world.rank().0), ..place }
    }

    /// Returns whether all ranks have reported that they have finished; false while the coordinator is away.
    fn all_are_done(&self, operator: &mut Option<Operator>) -> bool {
        let (coordinator, token) = (&self.seat.coordinator, &self.seat.token);
        let connect = || Operator::connect(coordinator, token, ASK_EVERY).ok();
        let Some(mut connected) = operator.take().or_else(connect) else { return false };
        let Ok(status) = connected.status() else { return false };
        *operator = Some(connected);
        let status = serde_json::from_str::<Value>(&status).unwrap_or_default();
        let members = status["members"].as_array();
        members.is_some_and(|all| all.iter().all(|it| it["figures"][DONE] == true))
    }
}
