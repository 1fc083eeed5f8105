//! Training of a member of an elastic job, from epoch to epoch.
//!
//! Each epoch is a [`TrainingLoop`] among its members. It ends after a step that all members agree on,
//! or with the loss of a peer. Between epochs, this process keeps its [`TrainingProgress`] and its
//! replica, as a [`Detached`]. The next epoch begins with the state of its state sources, which re-form
//! their exchange; joiners take over this state. Without state sources, all members begin with the last
//! checkpoint, or from the start.
//!
//! When all members leave, they save their state together in their last step. If no other process
//! continues after a loss, a process saves its own state alone, unless another process has saved a state
//! that is at least as new.
//!
//! Law: the members of the next epoch repeat a step in which a peer was lost, with the same rows of data.
//!
//! In a mode with rounds, no step is repeated, since each rank takes its own steps. Ranks that stay keep
//! their parameters and continue after the step of the rank that was furthest ahead. Joiners begin with the
//! common parameters and the state of rank 0's optimiser.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use thinwire_checkpoint::{FolderLock, Policy, latest, save, save_last};
use thinwire_collective::Group;
use thinwire_job::elastic::{
    Due, EpochStart, Membership, Next, Residuals, Run as EpochRun, StateFrom, Steps,
};
use thinwire_member::{Epoch, Id};
use thinwire_sync::{Channel, Mode};
use thinwire_wire::{Rank, World};

use super::checkpoints::{JOB, Replica};
use super::engine::{Detached, Engine, alone};
use super::role::{Role, change};
use super::rounds::ELASTIC_LAG;
use super::steps::{About, TrainingProgress};
use super::stretch::Stretches;
use super::{Computation, Ended, Event, Replicas, Session, Settings, hold_in_all};
use crate::checkpoint::Checkpoint;
use crate::error::{During, Error, Kind};
use crate::spmd::{Snapshot, zeros};
use crate::{Adam, rows};

/// Interval at which a process that waits for an epoch checks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time after which a process that waits for the coordinator reports this.
const EXPLAINED_AFTER: Duration = Duration::from_secs(5);
/// Operation of rank 0 on the folder of checkpoints, as the errors of the other ranks name it.
const FOLDER: &str = "use the folder of checkpoints";
const AWAY: &str =
    "the coordinator does not answer; waiting for it, because no epoch begins without it";
/// Longest time for which a process waits while others save their state, before it saves its own.
const TURN: Duration = Duration::from_secs(20);

/// Membership of one process in an elastic job.
pub struct Members<'a> {
    /// The model.
    pub replicas: Replicas<'a>,
    /// Connection to the coordinator and to the other members.
    pub membership: &'a mut Membership,
    /// Mark of the folder of checkpoints when this process joined.
    pub mark: Option<String>,
}

/// A process of an elastic job, which trains a replica.
struct Elastic<'a> {
    session: &'a Session<'a>,
    replicas: Replicas<'a>,
    /// State of the training in this process; `None` before its first epoch.
    kept: Option<(TrainingProgress, Detached)>,
    /// Mark of the folder of checkpoints when this process joined.
    mark: Option<String>,
    /// Number of the last epoch.
    number: u32,
    /// Members of the last epoch; empty before the first.
    members: Vec<Id>,
}

/// Trains in successive epochs until the training is over or this process has left.
///
/// # Errors
/// If the job refuses this process, or this process itself fails. The loss of a peer is not an error.
pub(super) fn train(session: &Session<'_>, members: Members<'_>) -> Result<Ended, Error> {
    let Settings { mode, exchange, .. } = session.settings;
    let fixed = match (exchange.adam, mode) {
        (Adam::ZeroOne, _) => Some(format!("optimizer {}", exchange.adam)),
        (_, Mode::Delayed { steps: 1.. }) => Some(format!("mode {mode}")),
        _ => None,
    };
    if let Some(fixed) = fixed {
        let message =
            format!("{fixed} cannot be used in an elastic job, expected a fixed number of ranks");
        return Err(Error::new(Kind::Invalid, message));
    }
    let Members { replicas, membership, mark } = members;
    let (kept, members) = (None, Vec::new());
    Elastic { session, replicas, kept, mark, number: 0, members }.train(membership)
}

impl Elastic<'_> {
    fn train(mut self, membership: &mut Membership) -> Result<Ended, Error> {
        loop {
            let run = match self.next(membership) {
                Ok(Next::Run(run)) => run,
                Ok(Next::Left) => {
                    let done = self.kept.as_ref().map(|(progress, _)| progress.done());
                    self.session.say_of_process(left(done, membership))?;
                    return Ok(Ended::Left);
                }
                Ok(Next::Stopped) => {
                    self.save_alone()?;
                    return Ok(Ended::Alone);
                }
                Err(error) => {
                    self.save_alone()?;
                    return Err(error);
                }
            };
            self.session.interrupt.remember();
            match self.epoch(membership, *run) {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(error) => match error.loss() {
                    Some(loss) => loss.rank().into_iter().for_each(|rank| membership.lost(rank)),
                    None => return Err(error),
                },
            }
            membership.halted();
        }
    }

    /// Waits for the next epoch. A signal ends a process without a state at once, and makes a process with a
    /// state leave.
    fn next(&self, membership: &mut Membership) -> Result<Next, Error> {
        if self.kept.is_none() {
            self.session.interrupt.end_at_once();
        }
        let mut is_away = false;
        loop {
            if let Some(next) = membership.next_within(LOOK_EVERY)? {
                return Ok(next);
            }
            if let Some(reason) = membership.obstacle() {
                self.session.say_of_process(format!("waiting: {reason}"))?;
            }
            let away = membership.away().is_some_and(|away| away > EXPLAINED_AFTER);
            if away && !std::mem::replace(&mut is_away, true) {
                self.session.say_of_process(AWAY)?;
            }
            if self.kept.is_some() && self.session.interrupt.signal().is_some() {
                membership.leave();
            }
        }
    }

    /// Writes a checkpoint of this process's state after its last epoch, unless a checkpoint of the same
    /// or a later step exists.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save_alone(&mut self) -> Result<(), Error> {
        let settings = self.session.settings;
        let (Some((progress, detached)), Some(policy)) = (self.kept.take(), settings.policy) else {
            return Ok(());
        };
        let (done, name, position) = (progress.done(), progress.job.as_deref(), progress.position);
        let (terms, elapsed_s) = (progress.terms, progress.elapsed_s());
        if !progress.has_begun() {
            return Ok(());
        }
        let computation = (self.replicas.of_rows)(self.replicas.unit)?;
        let engine = &mut self.engine_alone(detached, &computation)?;
        let mut replica =
            Replica { settings, name, engine, position, terms, elapsed_s, step: done };
        let saved =
            save_last(&mut replica, policy, done, |replica| self.save_in_turn(replica, policy));
        let (step, path) = saved.during(|| format!("saving step {done}"))?;
        let way = path.map_or(String::new(), |path| format!("; {}", (policy.go_on)(&path)));
        let steps = terms.total(settings.steps);
        self.session.say(format!(
            "no other rank is known to continue: stopped after step {step} of {steps}{way}"
        ))
    }

    /// Writes a checkpoint of the replica, unless the job has a checkpoint of the same or a later step.
    /// Returns the step and the path of the newest checkpoint.
    fn save_in_turn(
        &self,
        replica: &mut Replica<'_, '_>,
        policy: &Policy,
    ) -> Result<(u64, Option<PathBuf>), thinwire_checkpoint::Error> {
        let (name, step) = (replica.name.unwrap_or_default(), replica.step);
        let lock = FolderLock::hold_alone(policy, TURN)?
            .of_mark(self.mark.as_deref())
            .of_epoch(name, self.number);
        let newest = self.newest(name)?;
        if let Some(found) = newest.filter(|found| found.progress().step >= step) {
            return Ok((found.progress().step, Some(found.path().to_owned())));
        }
        Ok((step, save(replica, policy, &lock, step)?))
    }

    /// Returns the replica of this process as a world of its own.
    fn engine_alone<'b>(
        &self,
        mut detached: Detached,
        computation: &'b Computation,
    ) -> Result<Engine<'b>, Error> {
        let settings = self.session.settings;
        let channel = alone(settings);
        detached.reform(&channel)?;
        Engine::resume(settings, channel, computation, detached)
    }

    /// Trains in one epoch; returns the end of the training if it is over.
    fn epoch(&mut self, membership: &Membership, run: EpochRun) -> Result<Option<Ended>, Error> {
        let EpochRun { epoch, world, link } = run;
        let session = self.session;
        let (settings, policy) = (session.settings, session.settings.policy);
        let mut group = Group::new(link).with_timeout(settings.exchange.sync.timeout);
        let lock = match epoch.number {
            // If rank 0 cannot use the folder, no rank trains without it.
            1 => hold_in_all(policy, settings.resume, &mut group, FOLDER)?,
            _ => FolderLock::hold_again(policy, world.rank().0),
        };
        let lock = lock
            .of_mark(self.mark.as_deref())
            .of_epoch(&epoch.coordinator.to_string(), epoch.number);
        self.number = epoch.number;
        let channel = Channel::new(group);
        let stop = channel.stop();
        membership.on_abort(move || stop.stop("the members of the job change"));
        let batch = self.kept.as_ref().map_or(settings.batch, |(kept, _)| kept.terms.batch);
        let rows = rows(batch, self.replicas.unit, world);
        let computation = (self.replicas.of_rows)(rows.len())?;
        let (engine, progress) = self.begin(&epoch, channel.clone(), &computation)?;
        membership.synced(progress.done());
        if !epoch.has_state(membership.id()) {
            session.say_joined(epoch.number, world, progress.done())?;
        }
        let change = (epoch.state_sources > 0).then(|| change(&epoch, &self.members));
        self.members = epoch.members;
        let stretches = Stretches {
            session,
            lock: &lock,
            world,
            channel: channel.clone(),
            replicas: Some(self.replicas),
            role: Role::Member(membership),
        };
        stretches.run(engine, batch, progress, change, |mut training, ended| {
            match ended.and_then(|end| training.meet(end)) {
                Ok(due @ (Due::Finish | Due::Stop)) => {
                    match due {
                        Due::Finish => self.tell_completion(membership, world)?,
                        _ => membership.depart(),
                    }
                    let outcome = training.finish()?;
                    Ok(Some(Ended::Over(session.place_in(world), Box::new(outcome))))
                }
                ended => {
                    let (progress, mut detached) = training.leave()?;
                    let handed = match ended {
                        Ok(_) => hand_on(membership, &channel, &mut detached)
                            .inspect(|()| detached.release()),
                        Err(error) => Err(error),
                    };
                    self.kept = Some((progress, detached));
                    handed.map(|()| None)
                }
            }
        })
    }

    /// Tells the coordinator that all steps are done; if that fails, rank 0 reports the failure.
    fn tell_completion(&self, membership: &Membership, world: World) -> Result<(), Error> {
        match membership.complete() {
            Err(error) if world.rank() == Rank(0) => {
                self.session.observer.on(Event::Warning(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the replica with the newest state, and the progress up to that state. If this fails
    /// because a peer is lost, this process keeps its own state for the next epoch.
    fn begin<'b>(
        &mut self,
        epoch: &Epoch,
        channel: Channel,
        computation: &'b Computation,
    ) -> Result<(Engine<'b>, TrainingProgress), Error> {
        let settings = self.session.settings;
        let mut steps = self.kept.as_ref().map_or(Steps::default(), |(kept, _)| kept.steps);
        let (state_sources, done) = (epoch.state_sources, epoch.done);
        let entry = steps.begin(EpochStart { world: channel.world(), state_sources, done })?;
        let has_rounds = settings.mode.timetable().is_some();
        if has_rounds && entry.state != StateFrom::Checkpoint {
            return self.begin_rounds(epoch, channel, computation);
        }
        if entry.residuals == Residuals::Dropped {
            self.kept = None;
        }
        if entry.state == StateFrom::Checkpoint {
            return self.found(epoch, channel, computation);
        }
        // Joiners make their replica while state sources write their state down.
        let joined = match &mut self.kept {
            Some((_, detached)) => {
                if entry.residuals == Residuals::OfLostStep {
                    detached.replica.keep_lost()?;
                }
                detached.reform(&channel)?;
                None
            }
            None => {
                let channel = channel.clone();
                Some(Engine::over(settings, channel, computation, &zeros)?)
            }
        };
        let mut state = None;
        if let Some(sources) = entry.hand_over {
            let held = self.kept.as_ref().filter(|_| entry.state == StateFrom::Own);
            let held = held.map(|(kept, it)| it.replica.snapshot(&text_of(kept.about())));
            state = Some(channel.hand_over(sources, held.transpose()?)?);
        }
        let (mut engine, mut progress) = match joined {
            Some(engine) => (engine, progress_of(epoch, 0, settings)),
            None => {
                let (kept, detached) = self.kept.take().expect("who does not join has a state");
                (Engine::resume(settings, channel, computation, detached)?, kept)
            }
        };
        if let Some(state) = state.filter(|_| entry.state == StateFrom::Others) {
            let snapshot = Snapshot::parse(&state)?;
            progress.seek(snapshot.step, about_of(snapshot.about.as_bytes())?);
            engine.executor.take_over(snapshot)?;
        }
        Ok((engine, progress))
    }

    /// Returns the replica of an epoch in a mode with rounds, and the progress up to it. If this fails
    /// because a peer is lost, this process keeps its own state for the next epoch.
    fn begin_rounds<'b>(
        &mut self,
        epoch: &Epoch,
        channel: Channel,
        computation: &'b Computation,
    ) -> Result<(Engine<'b>, TrainingProgress), Error> {
        let settings = self.session.settings;
        let about = self.kept.as_ref().map(|(kept, _)| text_of(kept.about())).unwrap_or_default();
        let rows = channel.gather_bytes(about.clone().into_bytes())?;
        let ranks = channel.world().ranks().zip(&rows);
        let concerned = ranks.filter(|(rank, row)| *rank == Rank(0) || row.is_empty());
        let concerned: Vec<Rank> = concerned.map(|(rank, _)| rank).collect();
        let mut state = None;
        if let Some(few) = channel.among(&concerned).filter(|_| concerned.len() > 1) {
            let held = self.kept.as_ref().map(|(_, it)| it.replica.snapshot(&about));
            state = Some(few.hand_over(1, held.transpose()?)?);
        }
        if let Some((_, detached)) = &mut self.kept {
            detached.reform(&channel)?;
        }
        let (mut engine, mut progress) = match self.kept.take() {
            Some((kept, detached)) => {
                (Engine::resume(settings, channel, computation, detached)?, kept)
            }
            None => {
                let state = Snapshot::parse(&state.unwrap_or_default())?;
                let engine = Engine::joining(settings, channel, computation, state)?;
                (engine, progress_of(epoch, 0, settings))
            }
        };
        progress.seek(epoch.done, about_of(&rows[0])?);
        engine.executor.seek(epoch.done);
        Ok((engine, progress))
    }

    /// Returns the replica of an epoch without state sources, which begins with a checkpoint, or at step 0.
    fn found<'b>(
        &self,
        epoch: &Epoch,
        channel: Channel,
        computation: &'b Computation,
    ) -> Result<(Engine<'b>, TrainingProgress), Error> {
        let (world, settings) = (channel.world(), self.session.settings);
        let mut engine = Engine::in_mode(settings, channel, computation, ELASTIC_LAG)?;
        let name = epoch.coordinator.to_string();
        let newest = if epoch.number > 1 { self.newest(&name)? } else { None };
        let step_of = |found: &Checkpoint| found.progress().step;
        let checkpoint =
            newest.as_ref().into_iter().chain(settings.resume).max_by_key(|it| step_of(it));
        let step = checkpoint.map_or(0, step_of);
        let steps = engine.gather(&[step as f32])?;
        if let Some(other) = steps.iter().find(|other| **other != step as f32) {
            let message = format!(
                "this rank finds a checkpoint of step {step}, but another rank finds one of step {other}"
            );
            let hint = "--checkpoint-dir must be a folder that all ranks share, or none";
            return Err(Error::new(Kind::Checkpoint, message).with_hint(hint));
        }
        if world.rank() == Rank(0) {
            origin(epoch.number, checkpoint).map_or(Ok(()), |line| self.session.say(line))?;
        }
        let mut progress = progress_of(epoch, step, settings);
        if let Some(checkpoint) = checkpoint {
            progress.resume(checkpoint, self.session.load(checkpoint, &mut engine, world)?);
        }
        Ok((engine, progress))
    }

    /// Returns the newest checkpoint, if the job of this name has written it.
    fn newest(&self, job: &str) -> Result<Option<Checkpoint>, thinwire_checkpoint::Error> {
        let Some(policy) = self.session.settings.policy else { return Ok(None) };
        let newest = latest(&policy.folder)?.map(|path| Checkpoint::open(&path)).transpose()?;
        Ok(newest.filter(|it| it.progress().config[JOB] == job))
    }
}

impl Session<'_> {
    /// Reports that the process has the state of an epoch, and trains in it.
    pub(super) fn say_joined(&self, epoch: u32, world: World, done: u64) -> Result<(), Error> {
        let (rank, ranks) = (world.rank().0, world.size());
        self.say_of_process(format!(
            "joined epoch {epoch} after step {done}, as rank {rank} of {ranks}"
        ))
    }
}

/// Returns a place of the training as a text for other ranks.
fn text_of(about: About) -> String {
    json!(about).to_string()
}

fn about_of(text: &[u8]) -> Result<About, Error> {
    serde_json::from_slice(text).map_err(|error| {
        Error::exchange(error).during("the position in the data that another rank has sent")
    })
}

fn progress_of(epoch: &Epoch, first: u64, settings: &Settings<'_>) -> TrainingProgress {
    let mut progress = TrainingProgress::new(first, settings);
    progress.job = Some(epoch.coordinator.to_string());
    progress
}

/// Returns the line about a process that has left, with its last step if it has trained; or the line about
/// the end of the job.
fn left(done: Option<u64>, membership: &Membership) -> String {
    match (done, membership.is_over()) {
        (None, true) => "the job is over; this process was not needed".to_owned(),
        (Some(step), true) => format!("the job is over; this process took part up to step {step}"),
        (Some(step), false) => format!("left the job after step {step}"),
        (None, false) => "left the job".to_owned(),
    }
}

/// Returns the line about the checkpoint with which an epoch without state sources begins; or the line about
/// a beginning at step 0 if the epoch is not the first.
fn origin(epoch: u32, checkpoint: Option<&Checkpoint>) -> Option<String> {
    match checkpoint {
        Some(checkpoint) => {
            let (step, path) = (checkpoint.progress().step, checkpoint.path().display());
            Some(format!("epoch {epoch} continues from step {step}: {path}"))
        }
        None if epoch > 1 => {
            Some(format!("epoch {epoch} begins at step 0: this job has no checkpoint"))
        }
        None => None,
    }
}

/// Hands the residuals of each leaver to a rank that stays, at the end of an epoch.
fn hand_on(
    membership: &Membership,
    channel: &Channel,
    Detached { replica, rounds }: &mut Detached,
) -> Result<(), Error> {
    // What a rank has learnt since its last rounds goes with it.
    if rounds.is_some() {
        return Ok(());
    }
    let me = channel.world().rank();
    for (leaver, successor) in membership.successors() {
        let Some(pair) = channel.among(&[leaver, successor]) else { continue };
        let owed = (me == leaver).then(|| replica.owed()).transpose()?;
        let owed = pair.hand_over(1, owed)?;
        if me == successor {
            replica.take_on(&owed)?;
        }
    }
    Ok(())
}
