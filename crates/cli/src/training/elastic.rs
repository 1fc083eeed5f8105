//! Training as a member of an elastic job, from epoch to epoch.
//!
//! Each epoch is a [`Session`] among its members. It ends after a step that all agree on, or with the loss of
//! a peer; this process keeps its [`TrainingProgress`] and its replica as a [`DetachedReplica`]. The next epoch begins with the
//! state of its state sources, which re-form their exchange; joiners take over the state. Without state sources all begin
//! with the last checkpoint, or from the start.
//!
//! When all members leave, they save their state together in their last step. If nobody continues after a
//! loss, a process saves its own state alone, unless another one has saved a state as new.
//!
//! Law: the members of the next epoch repeat a step in which a peer was lost, with the same rows of data.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::json;
use thinwire_checkpoint::{FolderLock, latest, mark, save, save_last};
use thinwire_collective::Group;
use thinwire_job::Place;
use thinwire_job::elastic::{
    self, Due, EpochStart, Membership, Next, Residuals, Run as EpochRun, StateFrom, Steps,
};
use thinwire_link::mem;
use thinwire_member::{CoordinatorMode, Epoch, Id, Options};
use thinwire_sync::{Channel, Policy};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_train::spmd::{DetachedReplica, Snapshot, zeros};
use thinwire_train::{Parameter, rows};
use thinwire_wire::Rank;

use super::checkpoints::Replica;
use super::engine::Engine;
use super::interrupt::Interrupt;
use super::job::{CHECKPOINT_DIR, FIRST_STEP, TrainingJob};
use super::job_role::{JobRole, Seat, change, of_member};
use super::messages;
use super::plan::{Built, Parallelism};
use super::session::{About, Session, TrainingProgress};
use super::trace::Trace;
use super::{Trained, checkpoints, machine};
use crate::failure::{self, hinted};
use crate::output::say;

/// Interval at which a process that waits for an epoch looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What rank 0 does with the folder of checkpoints, as the error of the other ranks says it.
const FOLDER: &str = "use the folder of checkpoints";
/// Longest time for which a process waits while others save their state, before it saves its own.
const TURN: Duration = Duration::from_secs(20);

/// Trains as a member of an elastic job; rank 0 of the last epoch prints. Returns the code to exit with.
///
/// # Errors
/// If the job cannot be elastic or refuses this process, or this process fails by itself.
pub fn train(
    job: &TrainingJob,
    codecs: &[Option<&Policy>],
    seat: &elastic::JobAddress,
) -> Result<u8> {
    let settings = &job.settings;
    let place = of_member(seat);
    let [codec] = codecs else {
        return Err(anyhow!("{} codecs in an elastic job, expected one", codecs.len()));
    };
    job.check(codecs)?;
    job.export_metrics(&place)?;
    let interrupt = Interrupt::listen()?;
    let mut facts = job.facts();
    // A process that joins later finds a newer checkpoint, and takes over the state of the others anyway.
    facts.retain(|(name, _)| name != FIRST_STEP);
    // A bucket has one name everywhere, and a process may join while it is away.
    let folder = job.policy.as_ref().filter(|policy| !policy.is_in_bucket());
    let mark = folder.map(|policy| mark(&policy.folder)).transpose()?;
    if let Some(mark) = &mark {
        facts.retain(|(name, _)| name != CHECKPOINT_DIR);
        facts.push((CHECKPOINT_DIR.to_owned(), format!("the folder with the mark {mark}")));
    }
    let exchange = job.exchange.resolved(*codec, job.recipe.steps).described().into_iter();
    facts.extend(exchange.map(|(name, value)| (name.to_owned(), value)));
    let (min, max) = (1, thinwire_wire::WORLD_SIZE_MAX);
    let options = Options::new(CoordinatorMode::Saved, min, max);
    let links = settings.link.of_job(settings.limit(&place))?;
    // The others do not wait for what this process can do before it joins.
    if let (Some(policy), Parallelism::Replicas(model)) = (codec, &job.parallelism) {
        let model = model.smallest()?;
        let elements = model.parameters().iter().map(Parameter::elements);
        thinwire_sync::measure_codecs(policy, elements.max().unwrap_or(0), None);
    }
    let joining = messages::joining(&seat.coordinator);
    let mut membership = Membership::join(seat, &links, options, facts)?;
    drop(joining);
    messages::waiting(&seat.coordinator, seat.id);
    let elastic = Elastic { mark, ..Elastic::new(job, *codec, &place, &interrupt) };
    let threads = settings.threads(&place);
    let ended = thinwire_train::with_threads(threads, || elastic.train(&mut membership))?;
    match ended? {
        Ended::Left => Ok(0),
        Ended::Alone => Ok(interrupt.exit_code()),
        Ended::Over(place, trained) => {
            if place.rank > 0 {
                messages::over(place.rank);
            }
            super::conclude(job, &place, Ok(*trained), &interrupt)
        }
    }
}

/// A process of an elastic job, which trains a replica.
struct Elastic<'a> {
    job: &'a TrainingJob,
    codec: Option<&'a Policy>,
    place: &'a Place,
    interrupt: &'a Interrupt,
    /// State of the training in this process; none before its first epoch.
    kept: Option<(TrainingProgress, DetachedReplica)>,
    /// Mark of the folder of checkpoints when this process joined.
    mark: Option<String>,
    /// Number of the last epoch.
    number: u32,
    /// Members of the last epoch; none before the first.
    members: Vec<Id>,
}

/// End of an elastic training for one process.
enum Ended {
    /// The training is over; the place is that in the last epoch.
    Over(Place, Box<Trained>),
    /// The process has left a training that continues.
    Left,
    /// Nobody continues with the training, and this process has saved what it had.
    Alone,
}

impl<'a> Elastic<'a> {
    /// A process before its first epoch; `place` has all but its rank and the size of the world.
    fn new(
        job: &'a TrainingJob,
        codec: Option<&'a Policy>,
        place: &'a Place,
        interrupt: &'a Interrupt,
    ) -> Elastic<'a> {
        let (kept, mark, members) = (None, None, Vec::new());
        Elastic { job, codec, place, interrupt, kept, mark, number: 0, members }
    }

    /// Trains in one epoch after another until the training is over, or this process has left.
    ///
    /// # Errors
    /// If the job refuses this process, or it fails by itself. The loss of a peer is no error.
    fn train(mut self, membership: &mut Membership) -> Result<Ended> {
        loop {
            let run = match self.next(membership) {
                Ok(Next::Run(run)) => run,
                Ok(Next::Left) => {
                    let done = self.kept.as_ref().map(|(reached, _)| reached.done());
                    messages::left(done, membership);
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
            self.interrupt.remember();
            match self.epoch(membership, *run) {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(error) => match failure::lost_rank(&error) {
                    Some(rank) => rank.into_iter().for_each(|rank| membership.lost(rank)),
                    None => return Err(error),
                },
            }
            membership.halted();
        }
    }

    /// Waits for the next epoch. A signal ends a process that has no state yet at once, and makes one that
    /// has a state leave.
    fn next(&self, membership: &mut Membership) -> Result<Next> {
        if self.kept.is_none() {
            self.interrupt.end_at_once();
        }
        let mut is_away = false;
        loop {
            if let Some(next) = membership.next_within(LOOK_EVERY)? {
                return Ok(next);
            }
            if let Some(reason) = membership.obstacle() {
                messages::obstacle(&reason);
            }
            let away = membership.away().is_some_and(|away| away > messages::EXPLAINED_AFTER);
            if away && !std::mem::replace(&mut is_away, true) {
                messages::away();
            }
            if self.kept.is_some() && self.interrupt.signal().is_some() {
                membership.leave();
            }
        }
    }

    /// Writes a checkpoint of this process's state after its last epoch, unless one of the same step or a
    /// later one exists.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save_alone(&mut self) -> Result<()> {
        let (Some((reached, detached)), Some(policy)) = (self.kept.take(), &self.job.policy) else {
            return Ok(());
        };
        let done = reached.done();
        let (Some(name), position, true) = reached.kept() else { return Ok(()) };
        let place = Place { rank: 0, world: 1, ..self.place.clone() };
        let seat = Seat { place: &place, interrupt: self.interrupt, lock: &FolderLock::default() };
        let Parallelism::Replicas(model) = &self.job.parallelism else { return Ok(()) };
        let built = Built::replica(model, model.unit()?)?;
        let engine = &mut self.engine_alone(detached, &seat, &built)?;
        let (job, name) = (self.job, Some(name));
        let mut replica = Replica { job, name, engine, position, step: done };
        let saved =
            save_last(&mut replica, policy, done, |replica| self.save_in_turn(replica, policy));
        let (step, path) = saved.with_context(|| format!("saving step {done}"))?;
        self.say_stopped(step, path.as_deref());
        Ok(())
    }

    /// Writes a checkpoint of the replica, unless the job has one of the same step or a later one. Returns the
    /// step and the path of the newest.
    fn save_in_turn(
        &self,
        replica: &mut Replica<'_, '_>,
        policy: &thinwire_checkpoint::Policy,
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

    /// Says after which step the training has stopped, and how to resume it.
    fn say_stopped(&self, done: u64, checkpoint: Option<&Path>) {
        let way = checkpoint.map_or(String::new(), |path| format!("; {}", machine::go_on(path)));
        let steps = self.job.recipe.steps;
        say(format!("nobody is known to continue: stopped after step {done} of {steps}{way}"));
    }

    /// Returns the replica of this process as a world of its own.
    fn engine_alone<'b>(
        &self,
        mut detached: DetachedReplica,
        seat: &Seat<'_>,
        built: &'b Built,
    ) -> Result<Engine<'b>> {
        let timeout = self.job.settings.link.timeout();
        let channel = Channel::new(Group::new(mem::alone()).with_timeout(timeout));
        detached.reform(&channel)?;
        Engine::resume(self.job, self.codec, seat, channel, built, detached)
    }

    /// Trains in one epoch; returns the end of the training if it is over.
    fn epoch(&mut self, membership: &Membership, run: EpochRun) -> Result<Option<Ended>> {
        let EpochRun { epoch, world, link } = run;
        let place =
            Place { rank: world.rank().0, world: world.size() as u32, ..self.place.clone() };
        let policy = self.job.policy.as_ref();
        let timeout = self.job.settings.link.timeout();
        let mut group = Group::new(link).with_timeout(timeout);
        let lock = match epoch.number {
            // If rank 0 cannot use the folder, no rank trains without it.
            1 => {
                let resumed = self.job.resume.as_ref();
                checkpoints::hold_in_all(policy, resumed, place.rank, &mut group, FOLDER)?
            }
            _ => FolderLock::hold_again(policy, place.rank),
        };
        let lock = lock
            .of_mark(self.mark.as_deref())
            .of_epoch(&epoch.coordinator.to_string(), epoch.number);
        self.number = epoch.number;
        let seat = Seat { place: &place, interrupt: self.interrupt, lock: &lock };
        let job = self.job;
        let channel = Channel::new(group);
        let stop = channel.stop();
        membership.on_abort(move || stop.stop("the members of the job change"));
        let Parallelism::Replicas(model) = &job.parallelism else {
            return Err(anyhow!("an elastic training of parts of a plan"));
        };
        let rows = rows(job.recipe.batch, model.unit()?, world);
        let built = Built::replica(model, rows.len())?;
        let (engine, reached) = self.begin(&epoch, &seat, channel.clone(), &built)?;
        membership.synced(reached.done());
        if !epoch.has_state(membership.id()) {
            messages::joined(epoch.number, world, reached.done());
        }
        let title = (epoch.state_sources == 0).then(|| engine.title(job, self.codec, &seat));
        let change = (epoch.state_sources > 0).then(|| change(&epoch, &self.members));
        self.members = epoch.members;
        let session = Session::resume(job, title.as_deref(), engine, &seat, reached)?;
        let mut session = session.of_epoch(JobRole::Member(membership), change);
        match session.steps().and_then(|end| session.meet(end)) {
            Ok(due @ (Due::Finish | Due::Stop)) => {
                match due {
                    Due::Finish => tell_completion(membership, place.rank),
                    _ => membership.depart(),
                }
                let (run, kept) = session.finish()?;
                let trained = Trained { runs: vec![run], file: None, kept };
                Ok(Some(Ended::Over(place, Box::new(trained))))
            }
            ended => {
                let (reached, mut detached) = session.leave();
                let handed = match ended {
                    Ok(_) => hand_on(membership, &channel, &mut detached)
                        .inspect(|()| detached.release()),
                    Err(error) => Err(error),
                };
                self.kept = Some((reached, detached));
                handed.map(|()| None)
            }
        }
    }

    /// Returns the replica with the newest state, and the course up to it. If this fails because a peer is
    /// lost, this process keeps its own state for the next epoch.
    fn begin<'b>(
        &mut self,
        epoch: &Epoch,
        seat: &Seat<'_>,
        channel: Channel,
        built: &'b Built,
    ) -> Result<(Engine<'b>, TrainingProgress)> {
        let mut steps = self.kept.as_ref().map_or(Steps::default(), |(reached, _)| reached.steps());
        let (state_sources, done) = (epoch.state_sources, epoch.done);
        let entry = steps.begin(EpochStart { world: channel.world(), state_sources, done })?;
        if entry.residuals == Residuals::Dropped {
            self.kept = None;
        }
        if entry.state == StateFrom::Checkpoint {
            return self.found(epoch, seat, channel, built);
        }
        // Joiners make their replica while state sources write their state down.
        let joined = match &mut self.kept {
            Some((_, detached)) => {
                if entry.residuals == Residuals::OfLostStep {
                    detached.keep_lost()?;
                }
                detached.reform(&channel)?;
                None
            }
            None => {
                let channel = channel.clone();
                Some(Engine::over(self.job, self.codec, seat, channel, built, &zeros)?)
            }
        };
        let mut state = None;
        if let Some(sources) = entry.hand_over {
            let held = self.kept.as_ref().filter(|_| entry.state == StateFrom::Own);
            let held = held.map(|(reached, it)| it.snapshot(&json!(reached.about()).to_string()));
            state = Some(channel.hand_over(sources, held.transpose()?)?);
        }
        let (mut engine, mut reached) = match joined {
            Some(engine) => (engine, self.reached(epoch, 0)),
            None => {
                let (reached, detached) = self.kept.take().expect("who does not join has a state");
                (Engine::resume(self.job, self.codec, seat, channel, built, detached)?, reached)
            }
        };
        if let Some(state) = state.filter(|_| entry.state == StateFrom::Others) {
            let snapshot = Snapshot::parse(&state)?;
            let about = serde_json::from_str(&snapshot.about)
                .context("the position in the data that another rank has sent")?;
            reached.seek(snapshot.step, about);
            engine.machine.take_over(snapshot)?;
        }
        Ok((engine, reached))
    }

    /// Returns the replica of an epoch without state sources, which begins with a checkpoint, or at the
    /// beginning.
    fn found<'b>(
        &self,
        epoch: &Epoch,
        seat: &Seat<'_>,
        channel: Channel,
        built: &'b Built,
    ) -> Result<(Engine<'b>, TrainingProgress)> {
        let world = channel.world();
        let mut engine =
            Engine::start(self.job, self.codec, seat, channel, built, self.job.weights.as_ref())?;
        let name = epoch.coordinator.to_string();
        let newest = if epoch.number > 1 { self.newest(&name)? } else { None };
        let step_of = |found: &Checkpoint| found.progress().step;
        let checkpoint =
            newest.as_ref().into_iter().chain(&self.job.resume).max_by_key(|it| step_of(it));
        let step = checkpoint.map_or(0, step_of);
        let steps = engine.machine.gather(&[step as f32])?;
        if let Some(other) = steps.iter().find(|other| **other != step as f32) {
            let error = anyhow!(
                "this rank finds a checkpoint of step {step}, another rank one of step {other}"
            );
            return Err(hinted(
                error,
                "--checkpoint-dir must be a folder that all ranks share, or none",
            ));
        }
        if world.rank() == Rank(0) {
            tell_origin(epoch.number, checkpoint);
        }
        let mut reached = self.reached(epoch, step);
        if let Some(checkpoint) = checkpoint {
            let position = checkpoints::load(self.job, checkpoint, &mut engine, world)?;
            reached.seek(step, About { first: step, position });
        }
        Ok((engine, reached))
    }

    fn reached(&self, epoch: &Epoch, first: u64) -> TrainingProgress {
        TrainingProgress::new(self.codec, Trace::default(), first)
            .of_job(epoch.coordinator.to_string())
    }

    /// Returns the newest checkpoint, if the job of this name has written it.
    fn newest(&self, job: &str) -> Result<Option<Checkpoint>, thinwire_checkpoint::Error> {
        let Some(policy) = &self.job.policy else { return Ok(None) };
        let newest = latest(&policy.folder)?.map(|path| Checkpoint::open(&path)).transpose()?;
        Ok(newest.filter(|it| it.progress().config[checkpoints::JOB] == job))
    }
}

/// Says with which checkpoint an epoch without state sources begins, or that it begins at step 0 although it is not
/// the first.
fn tell_origin(epoch: u32, checkpoint: Option<&Checkpoint>) {
    match checkpoint {
        Some(checkpoint) => {
            let (step, path) = (checkpoint.progress().step, checkpoint.path().display());
            say(format!("epoch {epoch} continues from step {step}: {path}"));
        }
        None if epoch > 1 => {
            say(format!("epoch {epoch} begins at step 0: this job has no checkpoint"))
        }
        None => {}
    }
}

/// Tells the coordinator that all steps are done; if that fails, rank 0 says so.
fn tell_completion(membership: &Membership, rank: u32) {
    if let Err(error) = membership.complete()
        && rank == 0
    {
        let (message, hint) = failure::lines(&error.into());
        let hint = hint.map_or(String::new(), |hint| format!(" (hint: {hint})"));
        say(format!("warning: {message}{hint}"));
    }
}

/// Hands the residuals of each leaver to a rank that stays, at the end of an epoch.
fn hand_on(
    membership: &Membership,
    channel: &Channel,
    detached: &mut DetachedReplica,
) -> Result<()> {
    let me = channel.world().rank();
    for (leaver, successor) in membership.successors() {
        let Some(pair) = channel.among(&[leaver, successor]) else { continue };
        let owed = (me == leaver).then(|| detached.owed()).transpose()?;
        let owed = pair.hand_over(1, owed)?;
        if me == successor {
            detached.take_on(&owed)?;
        }
    }
    Ok(())
}
