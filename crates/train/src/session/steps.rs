//! One rank's training, from the first step to the last.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thinwire_checkpoint::FolderLock;
use thinwire_job::elastic::{Due, Steps, Wish};
use thinwire_report::training::{Change, Planned, Run};
use thinwire_sync::{Live, Mode, Time};
use thinwire_wire::{Rank, World};

use super::adaptation::{Adaptation, ELAPSED, Taken, Terms};
use super::advice::Settled;
use super::checkpoints::{Replica, SaveKind, write};
use super::engine::{Detached, Engine};
use super::log::{Adapted, Log, Step};
use super::planned::Measured;
use super::role::Role;
use super::{Event, OF_PLAN, Outcome, Session, Settings, TrainedModel};
use crate::checkpoint::Checkpoint;
use crate::error::{During, Error};
use crate::spmd::{Codecs, Modality};
use crate::{Batch, Position, Sampler, validation_batches, whole_validation_batches};

/// Number of measurements of the validation loss in a training.
const VALIDATIONS: u64 = 10;
/// Number of measurements of only computing, in the second half of the steps.
const ALONE_RUNS: u64 = 25;
/// Step after which `auto` has settled, because the whole error budget is in force.
const SETTLED_AFTER: u64 = 400;
/// Interval at which a member of an elastic job sends its figures to the coordinator.
const FIGURES_EVERY: Duration = Duration::from_millis(500);

/// A rank of a training with fixed ranks, or a rank in one epoch of another kind of training.
pub(super) struct TrainingLoop<'a> {
    session: &'a Session<'a>,
    lock: &'a FolderLock,
    world: World,
    engine: Engine<'a>,
    sampler: Sampler,
    validation: Vec<Batch>,
    progress: TrainingProgress,
    role: Role<'a>,
    /// The change with which this epoch began, until its first step has ended.
    change: Option<Change>,
    /// The time at which the last figures were sent.
    told: Instant,
}

/// Progress of a training as one process has seen it, across all epochs.
pub(super) struct TrainingProgress {
    log: Log,
    /// The step that the training began with.
    first: u64,
    /// Steps of this process.
    pub steps: Steps,
    /// Position of the next step's batch.
    pub position: Position,
    /// The end of the last step.
    at: Instant,
    /// Name of the elastic job.
    pub job: Option<String>,
    /// Terms that policies have changed.
    pub terms: Terms,
    /// The policies, and what they see.
    adaptation: Adaptation,
    /// Whether this process has reported the beginning of the training.
    is_told: bool,
    /// The last checkpoint, on rank 0, or the reason why it could not be written.
    saved: Result<Option<PathBuf>, Error>,
}

/// Place of a training, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct About {
    /// The step that the training began with.
    pub first: u64,
    /// Position of the next step's batch.
    pub position: Position,
    /// Terms that policies have changed.
    pub terms: Terms,
}

impl TrainingProgress {
    /// Returns the progress of a training that begins after `first` steps.
    pub fn new(first: u64, settings: &Settings<'_>) -> TrainingProgress {
        let mut steps = Steps::default();
        steps.synced(first);
        let (log, position) = (Log::default(), Position::default());
        TrainingProgress {
            log,
            first,
            steps,
            position,
            at: Instant::now(),
            job: None,
            terms: Terms::new(settings.batch),
            adaptation: Adaptation::new(settings.policies),
            is_told: false,
            saved: Ok(None),
        }
    }

    /// Returns the number of steps that are done.
    pub fn done(&self) -> u64 {
        self.steps.done()
    }

    /// Returns whether any step is done since the training began.
    pub fn has_begun(&self) -> bool {
        self.done() > self.first
    }

    /// Returns the state that joining ranks take over.
    pub fn about(&self) -> About {
        About { first: self.first, position: self.position, terms: self.terms }
    }

    /// Returns the seconds that the training has taken, including those before a checkpoint.
    pub fn elapsed_s(&self) -> f64 {
        self.adaptation.elapsed_s()
    }

    /// Continues from a checkpoint; `about` has the first step, the position in the data and the terms.
    pub fn resume(&mut self, checkpoint: &Checkpoint, about: About) {
        self.seek(checkpoint.progress().step, about);
        let elapsed_s = checkpoint.progress().config[ELAPSED].as_f64();
        self.adaptation.set_elapsed(elapsed_s.unwrap_or(0.0));
    }

    /// Continues from another rank's state.
    pub fn seek(&mut self, done: u64, About { first, position, terms }: About) {
        (self.first, self.position, self.terms) = (first, position, terms);
        self.steps.synced(done);
    }
}

impl<'a> TrainingLoop<'a> {
    /// Returns a rank that begins or continues a training; `change` is set unless the training itself begins.
    ///
    /// # Errors
    /// If the text is too short, or the batch too small for this number of ranks.
    pub fn resume(
        session: &'a Session<'a>,
        lock: &'a FolderLock,
        world: World,
        mut engine: Engine<'a>,
        mut progress: TrainingProgress,
        change: Option<Change>,
    ) -> Result<TrainingLoop<'a>, Error> {
        progress.steps.synced(progress.done());
        // In the last epoch this may have been rank 0.
        if !session.decides(world) {
            progress.adaptation.forget_proposal();
        }
        let settings = session.settings;
        engine.set_terms(settings, progress.terms)?;
        let sampling = engine.sampling(settings, world);
        let mut sampler = Sampler::new(settings.dataset.clone(), sampling)?;
        sampler.seek(progress.position);
        // As many rows as with the first batch.
        let most = (settings.validation_batches * settings.batch).div_ceil(progress.terms.batch);
        // Ranks that exchange nothing cannot add up their parts of the loss.
        let is_apart = engine.executor.world().size() == 1 && sampling.world.size() > 1;
        let validation = match is_apart {
            true => whole_validation_batches(settings.dataset, &sampling, most),
            false => validation_batches(settings.dataset, &sampling, most),
        };
        let is_first = change.is_none() && !progress.is_told;
        progress.is_told = true;
        let (computation, done) = (engine.computation, progress.done());
        let steps = progress.terms.total(settings.steps);
        session.observer.on(Event::Begun { world, computation, done, steps, is_first })?;
        // Another batch may need more rows than are held out.
        if world.rank() == Rank(0) && most > 0 && validation.is_empty() {
            let batch = progress.terms.batch;
            session.say(format!(
                "no validation: the held-out data does not fill a batch of {batch}"
            ))?;
        }
        let (role, told) = (Role::Fixed, Instant::now());
        Ok(TrainingLoop {
            session,
            lock,
            world,
            engine,
            sampler,
            validation,
            progress,
            role,
            change,
            told,
        })
    }

    /// Returns the loop with this role, for an epoch of a job whose ranks may join and leave.
    #[must_use]
    pub fn with_role(self, role: Role<'a>) -> TrainingLoop<'a> {
        TrainingLoop { role, ..self }
    }

    /// Takes steps until the training or the epoch is over, or until the batch has changed, in which case it
    /// returns [`Due::Step`]. Returns what is due next. Validation and checkpoints that are due after the
    /// last step of an epoch or of a batch are made when the next one begins.
    ///
    /// # Errors
    /// If a rank is lost, the observer fails, or a checkpoint before the last cannot be written.
    pub fn steps(&mut self) -> Result<Due, Error> {
        if self.progress.has_begun() {
            self.rest(None)?;
        }
        while self.due() == Due::Step {
            let done = self.progress.done();
            let batch = self.step().map_err(|error| in_step(error, done))?;
            let wish = self.progress.steps.wish();
            match wish {
                // Rounds under way end early: all ranks are at the same step.
                Wish::Change => {
                    self.engine.settle()?;
                    break;
                }
                Wish::Stop => self.role.closing(),
                Wish::Signal(signal) => self.session.interrupt.follow(signal),
                // The end of the training comes before another batch.
                Wish::Continue if self.has_other_batch() && self.due() == Due::Step => {
                    self.engine.executor.end_early()?;
                    break;
                }
                Wish::Continue => {}
            }
            self.rest(Some(&batch))?;
            if wish != Wish::Continue {
                // A rank that goes while others have steps to take before this one would be lost to them.
                self.engine.settle()?;
                self.say_stopped()?;
            }
        }
        Ok(self.due())
    }

    /// Returns what follows the last step.
    fn due(&self) -> Due {
        self.progress.steps.due(Some(self.total()))
    }

    /// Returns the number of steps of the whole training.
    fn total(&self) -> u64 {
        self.progress.terms.total(self.session.settings.steps)
    }

    /// Returns whether the next step has another batch than this loop.
    fn has_other_batch(&self) -> bool {
        self.engine.terms().batch != self.progress.terms.batch
    }

    /// Waits for all ranks at the end of the training. If a rank is lost after this call, it had done
    /// all steps.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn meet(&mut self, due: Due) -> Result<Due, Error> {
        if due == Due::Finish {
            self.engine.gather(&[0.0])?;
        }
        Ok(due)
    }

    /// Returns the number of steps that are done.
    pub fn done(&self) -> u64 {
        self.progress.done()
    }

    /// Ends the epoch of a replica, after any step or the loss of a peer.
    ///
    /// # Errors
    /// If the observer fails.
    pub fn leave(self) -> Result<(TrainingProgress, Detached), Error> {
        self.session.observer.on(Event::Ended)?;
        Ok((self.progress, self.engine.detach()))
    }

    /// Performs everything that is due after a step: validation, reports, measurements and a checkpoint.
    fn rest(&mut self, batch: Option<&Batch>) -> Result<(), Error> {
        // A signal ends nothing for good: the training may continue from its checkpoint.
        if self.due() == Due::Finish && self.progress.done() >= self.total() {
            let record = self.engine.unite()?;
            self.progress.log.exchanged(record);
        }
        let due = self.is_validated() || self.due() != Due::Step;
        let validation = if due { self.validate()? } else { None };
        if let Some(batch) = batch {
            let (log, step_s) = (&self.progress.log, self.progress.log.recent_step_s());
            if let Some(step) = log.last() {
                let sent_bytes = log.sent_bytes_per_step();
                let reached = Event::Reached { step, step_s, sent_bytes, validation };
                self.session.observer.on(reached)?;
            }
            if self.is_measured_alone() {
                let measured = self.engine.alone_s(batch);
                let seconds =
                    measured.during(|| format!("measuring after step {}", self.progress.done()))?;
                seconds.into_iter().for_each(|seconds| self.progress.log.alone(seconds));
            }
        }
        self.save()
    }

    /// Takes one step; returns the batch.
    fn step(&mut self) -> Result<Batch, Error> {
        let begun = Instant::now();
        let batch = self.sampler.next_batch();
        let wish = self.role.wish(self.session.interrupt.signal(), self.world.size());
        self.progress.steps.begin_step();
        self.engine.executor.note(&self.progress.adaptation.notes());
        let taken = self.engine.step(&batch, begun, wish);
        // A peer that is lost while ranks plan anew takes nothing back.
        if self.engine.executor.next_step() > self.progress.done() {
            self.progress.steps.applied();
            self.progress.position = self.sampler.position();
            let done = self.progress.done();
            let told = self.engine.told();
            let TrainingProgress { adaptation, terms, .. } = &mut self.progress;
            let unit = self.engine.computation.unit;
            adaptation.take(told, terms, done, unit);
            self.role.applied(done);
        }
        let (step, wish) = taken?;
        let step = Step { adapted: self.adapted(), ..step };
        self.progress.steps.agreed(wish);
        let passes = || self.engine.passes();
        self.session.observer.on(Event::Step { step: &step, passes: &passes })?;
        let loss = step.loss;
        self.progress.log.step(step);
        self.tell(loss)?;
        self.adapt()?;
        self.advise()?;
        Ok(batch)
    }

    /// Returns the batch of the last step and the noise scale, if there are policies.
    fn adapted(&self) -> Option<Adapted> {
        let scale = self.progress.adaptation.noise().map(|noise| noise.scale());
        let noise_scale = scale.filter(|scale| scale.is_finite());
        let adapted = Adapted { batch: self.engine.terms().batch as u64, noise_scale };
        (!self.session.settings.policies.is_empty()).then_some(adapted)
    }

    /// Reports on rank 0 which other mode would hide the communication, once `auto` has settled.
    fn advise(&self) -> Result<(), Error> {
        let (session, done) = (self.session, self.progress.done());
        let settled = (self.total() / 2).clamp(1, SETTLED_AFTER);
        let chooses = self.engine.error_budget(session.settings).is_some();
        if !(session.settings.advises && chooses) || self.world.rank() != Rank(0) || done != settled
        {
            return Ok(());
        }
        let Some(link) = self.engine.executor.sync().link() else { return Ok(()) };
        let Time { step_s, wait_s, .. } = self.progress.log.recent();
        let parameters = self.engine.computation.training.graph.parameters();
        let elements = parameters.map(|(_, tensor)| tensor.elements()).sum();
        let (ranks, bytes_per_s) = (self.world.size(), link.bytes_per_s);
        let advice = Settled { step_s, wait_s, elements, ranks, bytes_per_s }.advice();
        advice.map_or(Ok(()), |advice| session.say(advice.to_string()))
    }

    /// Applies the terms that leave the batch unchanged, and asks the policies on rank 0.
    fn adapt(&mut self) -> Result<(), Error> {
        let (session, terms) = (self.session, self.progress.terms);
        if !self.has_other_batch() && self.engine.terms() != terms {
            self.engine.set_terms(session.settings, terms)?;
        }
        let is_pending = self.progress.adaptation.is_pending();
        if !session.decides(self.world) || self.due() != Due::Step || is_pending {
            return Ok(());
        }
        let done = self.progress.done();
        // The budget of `auto` grows until then.
        let budget = self.engine.error_budget(session.settings);
        let taken = Taken {
            done,
            steps: session.settings.steps,
            ranks: self.world.size() as u32,
            time: self.progress.log.recent(),
            error_budget: budget.filter(|_| done >= SETTLED_AFTER),
        };
        for adjusted in self.progress.adaptation.ask(session, &terms, &taken)? {
            session.observer.on(Event::Adjusted(&adjusted))?;
            self.progress.log.adjusted(adjusted);
        }
        Ok(())
    }

    /// In an elastic job, reports the change before an epoch's first step, and figures from time to time.
    fn tell(&mut self, loss: f64) -> Result<(), Error> {
        let (done, pause) = (self.progress.done(), self.progress.at.elapsed());
        self.progress.at = Instant::now();
        if let Some(change) = self.change.take() {
            let change = Change { step: done - 1, pause_s: pause.as_secs_f64(), ..change };
            self.session.observer.on(Event::Changed(&change))?;
            self.progress.log.changed(change);
        }
        if self.role.is_elastic() && self.told.elapsed() > FIGURES_EVERY {
            self.told = Instant::now();
            self.role.tell(self.live(loss).object());
        }
        Ok(())
    }

    /// Returns the figures of this rank after a step.
    fn live(&self, loss: f64) -> Live {
        let log = &self.progress.log;
        let time = log.recent();
        let adapted = self.adapted();
        let live = Live {
            step: Some(self.progress.done()),
            steps: Some(self.total()),
            loss: Some(loss),
            samples_per_s: Some(self.progress.terms.batch as f64 / time.step_s),
            time: Some(time),
            batch: adapted.map(|adapted| adapted.batch),
            noise_scale: adapted.and_then(|adapted| adapted.noise_scale),
            ..Live::default()
        };
        match self.world.rank() {
            Rank(0) => {
                let record = log.last().map(|step| &step.record);
                live.with_exchange(self.engine.executor.sync().link(), record)
            }
            _ => live,
        }
    }

    /// Returns the validation loss over all ranks; `None` if the text is too short to hold any out.
    fn validate(&mut self) -> Result<Option<f64>, Error> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let loss = self.engine.evaluate(&self.validation);
        let loss = loss.during(|| format!("validating after step {}", self.progress.done()))?;
        self.progress.log.validated(self.progress.done(), loss);
        Ok(Some(loss))
    }

    /// Writes a checkpoint if one is due. An error of the last checkpoint is kept until the training has
    /// ended. In an elastic job, an error of any other checkpoint is only reported: otherwise, it would
    /// end the job's ranks one after the other. The previous checkpoint then remains the newest, and
    /// there may be room for the next one.
    fn save(&mut self) -> Result<(), Error> {
        let (settings, done) = (self.session.settings, self.progress.done());
        let over = self.due() != Due::Step;
        let due = |every: u64| done.is_multiple_of(every);
        let Some(policy) = settings.policy.filter(|it| over || it.every.is_some_and(due)) else {
            return Ok(());
        };
        // Of ranks that train against servers, the first one saves what it has pulled.
        let world = self.engine.world();
        if world.size() < self.world.size() && self.world.rank() != Rank(0) {
            return Ok(());
        }
        self.progress.log.pause();
        let is_elastic = self.role.is_elastic();
        let (name, position) = (self.progress.job.as_deref(), self.progress.position);
        let terms = self.progress.terms;
        let engine = &mut self.engine;
        let elapsed_s = self.progress.elapsed_s();
        let mut replica =
            Replica { settings, name, engine, position, terms, elapsed_s, step: done };
        let kind = match (over, is_elastic) {
            (true, _) => SaveKind::Last,
            (_, true) => SaveKind::Elastic,
            _ => SaveKind::Between,
        };
        let saved = write(&mut replica, policy, self.lock, done, kind);
        let told = |saved: Result<_, _>| saved.during(|| format!("saving step {done}"));
        match saved {
            saved if over => self.progress.saved = told(saved),
            Err(error) if is_elastic && error.kind() != thinwire_checkpoint::Kind::Lost => {
                policy.warn_unsaved(&error, done);
            }
            saved => self.progress.saved = Ok(told(saved)?),
        }
        Ok(())
    }

    fn take_saved(&mut self) -> Result<Option<PathBuf>, Error> {
        std::mem::replace(&mut self.progress.saved, Ok(None))
    }

    fn is_validated(&self) -> bool {
        // After each validation of a planned training a step follows that counts for its figures.
        let least = if self.engine.is_planned() { 2 } else { 1 };
        let every = (self.total() - self.progress.first).div_ceil(VALIDATIONS).max(least);
        (self.progress.done() - self.progress.first).is_multiple_of(every)
    }

    fn is_measured_alone(&self) -> bool {
        let (steps, done) =
            (self.total() - self.progress.first, self.progress.done() - self.progress.first);
        let every = (steps / 2 / ALONE_RUNS).max(1);
        2 * done > steps && done.is_multiple_of(every)
    }

    fn say_stopped(&self) -> Result<(), Error> {
        if self.world.rank() != Rank(0) {
            return Ok(());
        }
        let Session { settings, interrupt, .. } = self.session;
        let by = interrupt.name().map_or(String::new(), |name| format!(" by {name}"));
        let saved = self.progress.saved.as_ref().ok().and_then(Option::as_ref);
        let way = saved.zip(settings.policy);
        let way = way.map_or(String::new(), |(path, policy)| format!("; {}", (policy.go_on)(path)));
        let (done, steps) = (self.progress.done(), self.total());
        self.session.say(format!("stopped{by} after step {done} of {steps}{way}"))
    }

    /// Ends the training, and returns the figures of all steps and the model.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn finish(mut self) -> Result<Outcome, Error> {
        let (steps, log) = (self.progress.done() - self.progress.first, &self.progress.log);
        let (step_s, busy_s) = (log.settled_step_s(), log.settled_busy_s());
        let memory_bytes = self.session.observer.memory_bytes();
        let figures = self.engine.figures(&Measured { steps, step_s, busy_s, memory_bytes });
        // Who was lost while the last checkpoint was written is told of there.
        let planned = match figures {
            Err(error) => return Err(self.take_saved().err().unwrap_or(error)),
            Ok(planned) => planned,
        };
        let is_over =
            self.session.interrupt.signal().is_none() && self.progress.steps.wish() != Wish::Stop;
        let model = match self.world.rank() == Rank(0) && is_over {
            true => {
                self.engine.executor.whole()?.map_or(TrainedModel::InParts, TrainedModel::Whole)
            }
            false => TrainedModel::Elsewhere,
        };
        let TrainingLoop { session, world, engine, progress, .. } = self;
        let TrainingProgress { log, saved, terms, .. } = progress;
        session.observer.on(Event::Ended)?;
        let (computation, raw_bytes) =
            (engine.computation, engine.executor.program().raw_bytes() as f64);
        let mode = engine.mode();
        // The others may leave while rank 0 continues to write.
        drop(engine);
        let settings = session.settings;
        let policy = &settings.exchange.sync.policy;
        let (name, codec) = match settings.exchange.codecs {
            Codecs::OfPolicy => (policy.to_string(), policy.to_string()),
            Codecs::OfPlan => (OF_PLAN.to_owned(), "none".to_owned()),
        };
        // Steps between rounds have no codec.
        let codec = if mode.is_some() { "none".to_owned() } else { codec };
        if let Some(warning) = log.warning(&codec).filter(|_| world.rank() == Rank(0)) {
            session.say(warning)?;
        }
        let rate = settings.link_bytes_per_s;
        let tokens = terms.batch * computation.context;
        let (rounds, log_steps) = (log.rounds(), log.losses.len());
        let mut run = log.run(name, tokens as f64, rate);
        // A rank that joined late has seen fewer.
        run.steps = steps;
        if let Mode::Delayed { .. } = settings.mode {
            run.mode = Some(settings.mode.to_string());
        }
        if let Some(mode) = mode {
            let per_step = |bytes: u64| bytes as f64 / log_steps.max(1) as f64;
            run.mode = Some(mode.to_string());
            let elements: usize =
                computation.training.graph.parameters().map(|(_, it)| it.elements()).sum();
            // What an all-reduce of gradients would send as f32 in every step.
            let ranks = world.size() as f64;
            run.raw_bytes = 4.0 * elements as f64 * 2.0 * (ranks - 1.0) / ranks;
            run.sent_bytes = per_step(rounds.sent_bytes);
            run.floors.wire_s = rate.map(|rate| run.sent_bytes / rate);
            run.skipped_rounds = u64::from(rounds.skipped);
        }
        if let Some(planned) = planned {
            run.raw_bytes = raw_bytes;
            put(&mut run, planned, world, rate);
        }
        let (checkpoint, saved) = match saved {
            Ok(path) => (path, Ok(())),
            Err(error) => (None, Err(error)),
        };
        run.checkpoint = checkpoint.map(|path| path.display().to_string());
        run.is_of_images = matches!(computation.modality, Modality::Images(_));
        Ok(Outcome { run, saved, model, modality: computation.modality.clone() })
    }
}

/// Replaces the figures from buckets by predictions and counts of a plan.
fn put(run: &mut Run, planned: Planned, world: World, rate: Option<f64>) {
    let mine = planned.ranks.iter().find(|rank| rank.rank == world.rank().index());
    run.sent_bytes = mine.map_or(0.0, |rank| rank.counted_bytes as f64 / planned.steps as f64);
    run.floors.wire_s = rate.map(|rate| run.sent_bytes / rate);
    run.floors.compute_s = planned.ranks.iter().map(|rank| rank.busy_s).fold(0.0, f64::max);
    run.planned = Some(planned);
}

/// Names the step in an error that does not name it; exchanges of gradients know theirs.
fn in_step(error: Error, step: u64) -> Error {
    let names_it = error.chain().any(|cause| cause.to_string().contains(" of step "));
    match names_it {
        true => error,
        false => error.during(format!("step {step}")),
    }
}
