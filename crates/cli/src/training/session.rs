//! One rank's training, from the first step to the last.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use thinwire_checkpoint::{save, save_between, save_last};
use thinwire_job::elastic::{Due, Steps, Wish};
use thinwire_link::Bandwidth;
use thinwire_report::training::{Change, Planned, Run};
use thinwire_sync::{Live, Policy};
use thinwire_train::spmd::{DetachedReplica, Modality};
use thinwire_train::{Batch, Position, Sampler, validation_batches, whole_validation_batches};
use thinwire_wire::{Rank, World};

use super::engine::Engine;
use super::job::TrainingJob;
use super::job_role::{JobRole, Seat};
use super::log::Log;
use super::progress::{News, Progress};
use super::trace::Trace;
use super::{checkpoints, machine, outcome, plan};
use crate::metrics::Taken;
use crate::output::say;

/// Number of measurements of the validation loss in a training.
const VALIDATIONS: u64 = 10;
/// Number of measurements of compute alone, in the second half of the steps.
const ALONE_RUNS: u64 = 25;
/// Interval at which a member of an elastic job sends its figures to the coordinator.
const FIGURES_EVERY: Duration = Duration::from_millis(500);

/// A training under way: a rank in its job, or in one epoch of an elastic one.
pub struct Session<'a> {
    job: &'a TrainingJob,
    seat: &'a Seat<'a>,
    world: World,
    engine: Engine<'a>,
    sampler: Sampler,
    validation: Vec<Batch>,
    progress: Progress,
    reached: TrainingProgress,
    job_role: JobRole<'a>,
    /// The change that this epoch began with, until its first step has ended.
    change: Option<Change>,
    /// The time of the last figures.
    told: Instant,
}

/// Progress of a training as one process has seen it, through all epochs.
pub struct TrainingProgress {
    log: Log,
    trace: Trace,
    name: String,
    /// The step that the training began with.
    first: u64,
    /// Steps of this process.
    steps: Steps,
    /// Where the batch of the next step begins.
    position: Position,
    /// The end of the last step.
    at: Instant,
    /// Name of the elastic job.
    job: Option<String>,
    /// The last checkpoint, on rank 0, or why it could not be written.
    saved: Result<Option<PathBuf>>,
}

/// Place of a training that all its ranks have alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The step that the training began with.
    pub first: u64,
    /// Where the batch of the next step begins.
    pub position: Position,
}

impl TrainingProgress {
    /// A training that begins after `first` steps.
    pub fn new(codec: Option<&Policy>, trace: Trace, first: u64) -> TrainingProgress {
        let name = codec.map_or(plan::NAME.to_owned(), Policy::to_string);
        let (log, position) = (Log::default(), Position::default());
        let mut steps = Steps::default();
        steps.synced(first);
        TrainingProgress {
            log,
            trace,
            name,
            first,
            steps,
            position,
            at: Instant::now(),
            job: None,
            saved: Ok(None),
        }
    }

    /// The course of a training that is an elastic job of this name.
    #[must_use]
    pub fn of_job(self, job: String) -> TrainingProgress {
        TrainingProgress { job: Some(job), ..self }
    }

    /// Returns the number of steps that are done.
    pub fn done(&self) -> u64 {
        self.steps.done()
    }

    /// Returns the steps of this process.
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// Returns the name of the elastic job, where the batch of the next step begins, and whether any step is
    /// done.
    pub fn kept(&self) -> (Option<&str>, Position, bool) {
        (self.job.as_deref(), self.position, self.done() > self.first)
    }

    /// Returns what ranks that join take over.
    pub fn about(&self) -> About {
        About { first: self.first, position: self.position }
    }

    /// Continues from another rank's state.
    pub fn seek(&mut self, done: u64, About { first, position }: About) {
        (self.first, self.position) = (first, position);
        self.steps.synced(done);
    }
}

impl<'a> Session<'a> {
    /// A rank before its first step, under a codec or by a plan.
    ///
    /// # Errors
    /// If the text is too short, or the checkpoint cannot be taken up.
    pub fn start(
        job: &'a TrainingJob,
        codec: Option<&Policy>,
        mut engine: Engine<'a>,
        seat: &'a Seat<'a>,
        trace: Trace,
    ) -> Result<Session<'a>> {
        let world = World::new(seat.place.rank, seat.place.world)?;
        let first = job.resume.as_ref().map_or(0, |found| found.progress().step);
        let mut reached = TrainingProgress::new(codec, trace, first);
        if let Some(checkpoint) = &job.resume {
            reached.position = checkpoints::load(job, checkpoint, &mut engine, world)?;
        }
        let speaks = world.rank() == Rank(0);
        let warnings = codec.filter(|_| speaks).map_or(Vec::new(), Policy::warnings);
        warnings.into_iter().for_each(|warning| say(format!("warning: {warning}")));
        let title = engine.title(job, codec, seat);
        Session::resume(job, Some(&title), engine, seat, reached)
    }

    /// A rank that continues with a training.
    ///
    /// # Errors
    /// If the text is too short, or the batch too small for so many ranks.
    pub fn resume(
        job: &'a TrainingJob,
        title: Option<&str>,
        engine: Engine<'a>,
        seat: &'a Seat<'a>,
        mut reached: TrainingProgress,
    ) -> Result<Session<'a>> {
        reached.steps.synced(reached.done());
        let world = World::new(seat.place.rank, seat.place.world)?;
        let sampling = engine.sampling(job, world);
        let mut sampler = Sampler::new(job.dataset.clone(), sampling)?;
        sampler.seek(reached.position);
        let most = usize::from(job.settings.validation_batches);
        // Ranks that exchange nothing cannot add up their parts of the loss.
        let is_apart = engine.machine.world().size() == 1 && sampling.world.size() > 1;
        let validation = match is_apart {
            true => whole_validation_batches(&job.dataset, &sampling, most),
            false => validation_batches(&job.dataset, &sampling, most),
        };
        let speaks = world.rank() == Rank(0);
        let progress = match speaks {
            true => Progress::new(title, reached.done(), job.recipe.steps),
            false => Progress::default(),
        };
        // Once: later epochs of an elastic job have no title.
        if speaks && title.is_some() && most > 0 && validation.is_empty() {
            let batch = job.recipe.batch;
            say(format!("no validation: the data held out does not fill a batch of {batch}"));
        }
        let (job_role, change, told) = (JobRole::Fixed, None, Instant::now());
        Ok(Session {
            job,
            seat,
            world,
            engine,
            sampler,
            validation,
            progress,
            reached,
            job_role,
            change,
            told,
        })
    }

    /// The session as one epoch of a job whose ranks come and go, perhaps after another one.
    #[must_use]
    pub fn of_epoch(self, job_role: JobRole<'a>, change: Option<Change>) -> Session<'a> {
        Session { job_role, change, ..self }
    }

    /// Takes all steps. The run is complete on rank 0 only; beside it stands whether the last
    /// checkpoint, where one was asked for, could be written.
    ///
    /// # Errors
    /// If a rank is lost, or the trace or a checkpoint before the last cannot be written.
    pub fn run(mut self) -> Result<(Run, Result<()>)> {
        self.steps()?;
        self.finish()
    }

    /// Takes steps until the training or the epoch is over; returns what is due then. Validation and
    /// checkpoints that are due after the last step of an epoch are made when the next one begins.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn steps(&mut self) -> Result<Due> {
        if self.reached.done() > self.reached.first {
            self.rest(None)?;
        }
        while self.due() == Due::Step {
            let done = self.reached.done();
            let (batch, news) = self.step().map_err(|error| in_step(error, done))?;
            let wish = self.reached.steps.wish();
            match wish {
                Wish::Change => break,
                Wish::Stop => self.job_role.closing(),
                Wish::Signal(signal) => self.seat.interrupt.follow(signal),
                Wish::Continue => {}
            }
            self.rest(Some((&batch, news)))?;
            if wish != Wish::Continue {
                self.say_stopped();
            }
        }
        Ok(self.due())
    }

    /// Returns what follows the last step.
    fn due(&self) -> Due {
        self.reached.steps.due(Some(self.job.recipe.steps))
    }

    /// Waits for all ranks at the end of the training: a rank that is lost later has done all steps.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn meet(&mut self, due: Due) -> Result<Due> {
        if due == Due::Finish {
            self.engine.machine.gather(&[0.0])?;
        }
        Ok(due)
    }

    /// Returns the number of steps that are done.
    pub fn done(&self) -> u64 {
        self.reached.done()
    }

    /// Ends the epoch of a replica, after any step or the loss of a peer.
    pub fn leave(self) -> (TrainingProgress, DetachedReplica) {
        (self.reached, self.engine.machine.into_detached())
    }

    /// Does what is due after a step: validation, news, measurements and a checkpoint.
    fn rest(&mut self, step: Option<(&Batch, News)>) -> Result<()> {
        let due = self.is_validated() || self.due() != Due::Step;
        let validation = if due { self.validate()? } else { None };
        if let Some((batch, news)) = step {
            self.progress.tell(&News { validation, ..news });
            if self.is_measured_alone() {
                let measured = self.engine.alone_s(batch);
                let seconds = measured
                    .with_context(|| format!("measuring after step {}", self.reached.done()))?;
                seconds.into_iter().for_each(|seconds| self.reached.log.alone(seconds));
            }
        }
        self.save()
    }

    /// Takes one step; returns the batch, and news of the step.
    fn step(&mut self) -> Result<(Batch, News)> {
        let begun = Instant::now();
        let batch = self.sampler.next_batch();
        let wish = self.job_role.wish(self.seat.interrupt.signal(), self.world.size());
        self.reached.steps.begin_step();
        let taken = self.engine.step(&batch, begun, wish);
        // A peer that is lost while ranks plan anew takes nothing back.
        if self.engine.machine.next_step() > self.reached.done() {
            self.reached.steps.applied();
            self.reached.position = self.sampler.position();
            self.job_role.applied(self.reached.done());
        }
        let (step, wish) = taken?;
        self.reached.steps.agreed(wish);
        self.reached.trace.step(&step.record, || self.engine.passes())?;
        step.record.planning.iter().for_each(|planning| self.progress.planned(planning));
        let (loss, sent_bytes) = (step.loss, step.sent_bytes);
        let (step_s, wait_s) = (step.step_s, step.wait_s);
        let taken = Taken { step: self.reached.done(), loss, steps: 1, step_s, wait_s, sent_bytes };
        self.job.metrics.add(taken);
        self.reached.log.step(step);
        let step_s = self.reached.log.recent_step_s();
        self.tell(loss);
        let news = News { done: self.reached.done(), loss, step_s, sent_bytes, validation: None };
        Ok((batch, news))
    }

    /// Tells people of an elastic job: of the change before an epoch's first step, and of figures now and then.
    fn tell(&mut self, loss: f64) {
        let (done, pause) = (self.reached.done(), self.reached.at.elapsed());
        self.reached.at = Instant::now();
        if let Some(change) = self.change.take() {
            let change = Change { step: done - 1, pause_s: pause.as_secs_f64(), ..change };
            self.progress.say(&change.to_string());
            self.reached.log.changed(change);
        }
        if self.job_role.is_elastic() && self.told.elapsed() > FIGURES_EVERY {
            self.told = Instant::now();
            self.job_role.tell(self.live(loss).object());
        }
    }

    /// Returns the figures of this rank after a step.
    fn live(&self, loss: f64) -> Live {
        let (recipe, log) = (&self.job.recipe, &self.reached.log);
        let time = log.recent();
        let live = Live {
            step: Some(self.reached.done()),
            steps: Some(recipe.steps),
            loss: Some(loss),
            samples_per_s: Some(recipe.batch as f64 / time.step_s),
            time: Some(time),
            ..Live::default()
        };
        match self.world.rank() {
            Rank(0) => live.with_exchange(self.engine.machine.sync().link(), log.last_record()),
            _ => live,
        }
    }

    /// The validation loss over all ranks; none if the text is too short to hold any out.
    fn validate(&mut self) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let loss = self.engine.evaluate(&self.validation);
        let loss =
            loss.with_context(|| format!("validating after step {}", self.reached.done()))?;
        self.reached.log.validated(self.reached.done(), loss);
        Ok(Some(loss))
    }

    /// Writes a checkpoint where one is due. An error of the last one waits until the training has ended. One
    /// that ends the training is saved elsewhere ([`save_last`]). Any other one is only told in an elastic job, whose ranks would otherwise end one after the other: the
    /// checkpoint before stays the newest, and the next one may find room.
    fn save(&mut self) -> Result<()> {
        let (job, done, over) = (self.job, self.reached.done(), self.due() != Due::Step);
        let due = |every: u64| done.is_multiple_of(every);
        let Some(policy) = job.policy.as_ref().filter(|it| over || it.every.is_some_and(due))
        else {
            return Ok(());
        };
        // Of ranks that train against servers, the first one saves what it has pulled.
        let world = self.engine.machine.world();
        if world.size() < self.world.size() && self.world.rank() != Rank(0) {
            return Ok(());
        }
        self.reached.log.pause();
        let is_elastic = self.job_role.is_elastic();
        let lock = self.seat.lock;
        let (name, position) = (self.reached.job.as_deref(), self.reached.position);
        let mut replica =
            checkpoints::Replica { job, name, engine: &mut self.engine, position, step: done };
        // A training of fixed ranks ends with a checkpoint that fails, unless its place is away for a while.
        let attempt = |replica: &mut _| save(replica, policy, lock, done);
        let saved = match (over, is_elastic) {
            (true, _) => save_last(&mut replica, policy, done, attempt),
            (_, true) => save(&mut replica, policy, lock, done),
            _ => save_between(&mut replica, policy, done, attempt).map(Option::flatten),
        };
        let told = |saved: Result<_, _>| saved.with_context(|| format!("saving step {done}"));
        match saved {
            saved if over => self.reached.saved = told(saved),
            Err(error) if is_elastic && error.kind() != thinwire_checkpoint::Kind::Lost => {
                policy.warn_unsaved(&error, done);
            }
            saved => self.reached.saved = Ok(told(saved)?),
        }
        Ok(())
    }

    fn take_saved(&mut self) -> Result<Option<PathBuf>> {
        std::mem::replace(&mut self.reached.saved, Ok(None))
    }

    fn is_validated(&self) -> bool {
        // After each validation of a planned training a step follows that counts for its figures.
        let least = if self.engine.is_planned() { 2 } else { 1 };
        let every = (self.job.recipe.steps - self.reached.first).div_ceil(VALIDATIONS).max(least);
        (self.reached.done() - self.reached.first).is_multiple_of(every)
    }

    fn is_measured_alone(&self) -> bool {
        let (steps, done) =
            (self.job.recipe.steps - self.reached.first, self.reached.done() - self.reached.first);
        let every = (steps / 2 / ALONE_RUNS).max(1);
        2 * done > steps && done.is_multiple_of(every)
    }

    fn say_stopped(&self) {
        if self.world.rank() == Rank(0) {
            let signal = self.seat.interrupt.signal();
            let name = signal.map(signal_hook::low_level::signal_name);
            let by =
                name.map_or(String::new(), |name| format!(" by {}", name.unwrap_or("a signal")));
            let steps = self.job.recipe.steps;
            let saved = self.reached.saved.as_ref().ok().and_then(Option::as_ref);
            let saved = saved.map_or(String::new(), |path| format!("; {}", machine::go_on(path)));
            say(format!("stopped{by} after step {} of {steps}{saved}", self.reached.done()));
        }
    }

    /// Ends the training: the figures of all steps, and a text of the model or its accuracy.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn finish(mut self) -> Result<(Run, Result<()>)> {
        let (steps, log) = (self.reached.done() - self.reached.first, &self.reached.log);
        let figures = self.engine.figures(steps, log.settled_step_s(), log.settled_busy_s());
        // Who was lost while the last checkpoint was written is told of there.
        let planned = match figures {
            Err(error) => return Err(self.take_saved().err().unwrap_or(error)),
            Ok(planned) => planned,
        };
        let is_over =
            self.seat.interrupt.signal().is_none() && self.reached.steps.wish() != Wish::Stop;
        let writes = self.world.rank() == Rank(0) && is_over;
        let whole = if writes { self.engine.machine.whole()? } else { None };
        let Session { job, seat, world, engine, reached, progress, .. } = self;
        let TrainingProgress { log, name, saved, .. } = reached;
        drop(progress);
        let (built, raw_bytes) = (engine.built, engine.machine.program().raw_bytes() as f64);
        // The others may leave while rank 0 continues to write.
        drop(engine);
        let codec = if name == plan::NAME { "none" } else { &name };
        if let Some(warning) = log.warning(codec).filter(|_| world.rank() == Rank(0)) {
            say(warning);
        }
        let rate = job.settings.limit(seat.place).map(Bandwidth::bytes_per_s);
        let tokens = job.recipe.batch * built.model.context();
        let mut run = log.run(name, tokens as f64, rate);
        // A rank that joined late has seen fewer.
        run.steps = steps;
        if let Some(planned) = planned {
            run.raw_bytes = raw_bytes;
            put(&mut run, planned, world, rate);
        }
        let (checkpoint, kept) = match saved {
            Ok(path) => (path, Ok(())),
            Err(error) => (None, Err(error)),
        };
        run.checkpoint = checkpoint.map(|path| path.display().to_string());
        run.is_of_images = matches!(built.modality, Modality::Images(_));
        if writes {
            outcome::judge(&mut run, job, built, whole)?;
        }
        Ok((run, kept))
    }
}

/// Puts predictions and counts of a plan in the place of what buckets tell.
fn put(run: &mut Run, planned: Planned, world: World, rate: Option<f64>) {
    let mine = planned.ranks.iter().find(|rank| rank.rank == world.rank().index());
    run.sent_bytes = mine.map_or(0.0, |rank| rank.counted_bytes as f64 / planned.steps as f64);
    run.floors.wire_s = rate.map(|rate| run.sent_bytes / rate);
    run.floors.compute_s = planned.ranks.iter().map(|rank| rank.busy_s).fold(0.0, f64::max);
    run.planned = Some(planned);
}

/// Names the step in an error that does not: exchanges of gradients know theirs.
fn in_step(error: anyhow::Error, step: u64) -> anyhow::Error {
    match format!("{error:#}").contains(" of step ") {
        true => error,
        false => error.context(format!("step {step}")),
    }
}
