//! One rank's training, from the first step to the last.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use thinwire_link::Bandwidth;
use thinwire_sync::Policy;
use thinwire_train::spmd::Sampled;
use thinwire_train::{Batch, Sampler, validation_batches};
use thinwire_wire::{Rank, World};

use super::engine::Engine;
use super::job::TrainingJob;
use super::log::Log;
use super::progress::{News, Progress};
use super::seat::Seat;
use super::trace::Trace;
use super::{checkpoints, machine, plan};
use crate::output::{harmless, say};
use crate::report::{Planned, Run};

/// Number of measurements of the validation loss in a training.
const VALIDATIONS: u64 = 10;
/// Number of measurements of compute alone, in the second half of the steps.
const ALONE_RUNS: u64 = 25;
const SAMPLE_TEMPERATURE: f32 = 0.7;

/// A training under way.
pub struct Session<'a> {
    job: &'a TrainingJob,
    seat: &'a Seat<'a>,
    world: World,
    engine: Engine<'a>,
    sampler: Sampler,
    validation: Vec<Batch>,
    progress: Progress,
    log: Log,
    trace: Trace,
    name: String,
    first: u64,
    done: u64,
    /// The last checkpoint, on rank 0, or why it could not be written.
    saved: Result<Option<PathBuf>>,
}

impl<'a> Session<'a> {
    /// A rank before its first step, under a codec or by a plan.
    ///
    /// # Errors
    /// If the text is too short, or the checkpoint cannot be taken up.
    pub fn start(
        (job, codec): (&'a TrainingJob, Option<&Policy>),
        mut engine: Engine<'a>,
        seat: &'a Seat<'a>,
        trace: Trace,
    ) -> Result<Session<'a>> {
        let world = World::new(seat.place.rank, seat.place.world)?;
        let sampling = engine.sampling(job, world);
        let mut sampler = Sampler::new(job.corpus.clone(), sampling)?;
        let rows = sampling.global_batch / sampling.world.size();
        let most = job.settings.validation_batches.into();
        let validation =
            validation_batches(&job.corpus, sampling.context, rows, sampling.world, most);
        let mut first = 0;
        if let Some(checkpoint) = &job.resume {
            checkpoints::load(job, checkpoint, (&mut engine, &mut sampler), world)?;
            first = checkpoint.manifest().progress.step;
        }
        let speaks = world.rank() == Rank(0);
        let warnings = codec.filter(|_| speaks).map_or(Vec::new(), Policy::warnings);
        warnings.into_iter().for_each(|warning| say(format!("warning: {warning}")));
        let title = engine.title(job, codec, seat);
        let progress = Progress::new(&title, first, job.recipe.steps, speaks);
        let name = codec.map_or(plan::NAME.to_owned(), Policy::to_string);
        Ok(Session {
            job,
            seat,
            world,
            engine,
            sampler,
            validation,
            progress,
            log: Log::default(),
            trace,
            name,
            first,
            done: first,
            saved: Ok(None),
        })
    }

    /// Takes all steps. The run is complete on rank 0 only; beside it stands whether the last
    /// checkpoint, where one was asked for, could be written.
    ///
    /// # Errors
    /// If a rank is lost, or the trace or a checkpoint before the last cannot be written.
    pub fn run(mut self) -> Result<(Run, Result<()>)> {
        let steps = self.job.recipe.steps;
        let mut stop = false;
        while self.done < steps && !stop {
            let (batch, news, stopped) = self.step().map_err(|error| in_step(error, self.done))?;
            stop = stopped;
            let over = stop || self.done == steps;
            let due = self.is_validated() || over;
            let validation = if due { self.validate()? } else { None };
            self.progress.tell(&News { validation, ..news });
            if self.is_measured_alone() {
                let measured = self.engine.alone_s(&batch);
                let seconds =
                    measured.with_context(|| format!("measuring after step {}", self.done))?;
                seconds.into_iter().for_each(|seconds| self.log.alone(seconds));
            }
            self.save(over)?;
        }
        if stop {
            self.say_stopped();
        }
        self.finish()
    }

    /// Takes one step; whether any rank wants to stop after it.
    fn step(&mut self) -> Result<(Batch, News, bool)> {
        let begun = Instant::now();
        let batch = self.sampler.next_batch();
        let signal = self.seat.interrupt.signal().unwrap_or(0);
        let (step, signal) = self.engine.step(&batch, begun, signal)?;
        if signal != 0 {
            self.seat.interrupt.follow(signal);
        }
        self.trace.step(&step.record, || self.engine.passes())?;
        step.record.planning.iter().for_each(|planning| self.progress.planned(planning));
        let (loss, sent_bytes) = (step.loss, step.sent_bytes);
        self.log.step(step);
        self.done += 1;
        let step_s = self.log.recent_step_s();
        let news = News { done: self.done, loss, step_s, sent_bytes, validation: None };
        Ok((batch, news, signal != 0))
    }

    /// The validation loss over all ranks; none if the text is too short to hold any out.
    fn validate(&mut self) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let loss = self.engine.evaluate(&self.validation);
        let loss = loss.with_context(|| format!("validating after step {}", self.done))?;
        self.log.validated(self.done, loss);
        Ok(Some(loss))
    }

    /// Writes a checkpoint where one is due. That the last one cannot be written ends no training.
    fn save(&mut self, over: bool) -> Result<()> {
        let (job, done) = (self.job, self.done);
        let due = |every: u64| done.is_multiple_of(every);
        let Some(policy) = job.policy.as_ref().filter(|it| over || it.every.is_some_and(due))
        else {
            return Ok(());
        };
        self.log.pause();
        let state = (&mut self.engine, &self.sampler);
        let saved = checkpoints::save(job, (policy, &self.seat.lock), state, (self.world, done));
        if saved.is_err() {
            self.seat.lock.discard(done);
        }
        self.saved = saved.with_context(|| format!("saving step {done}"));
        match over {
            true => Ok(()),
            false => self.take_saved().map(|saved| self.saved = Ok(saved)),
        }
    }

    fn take_saved(&mut self) -> Result<Option<PathBuf>> {
        std::mem::replace(&mut self.saved, Ok(None))
    }

    fn is_validated(&self) -> bool {
        // After each validation of a planned training a step follows that counts for its figures.
        let least = if self.engine.is_planned() { 2 } else { 1 };
        let every = (self.job.recipe.steps - self.first).div_ceil(VALIDATIONS).max(least);
        (self.done - self.first).is_multiple_of(every)
    }

    fn is_measured_alone(&self) -> bool {
        let (steps, done) = (self.job.recipe.steps - self.first, self.done - self.first);
        let every = (steps / 2 / ALONE_RUNS).max(1);
        2 * done > steps && done.is_multiple_of(every)
    }

    fn say_stopped(&self) {
        if self.world.rank() == Rank(0) {
            let name = self.seat.interrupt.signal().and_then(signal_hook::low_level::signal_name);
            let (name, steps) = (name.unwrap_or("a signal"), self.job.recipe.steps);
            let saved = self.saved.as_ref().ok().and_then(Option::as_ref);
            let saved = saved.map_or(String::new(), |path| format!("; {}", machine::go_on(path)));
            say(format!("stopped by {name} after step {} of {steps}{saved}", self.done));
        }
    }

    /// The figures of all steps, and a text of the model.
    fn finish(mut self) -> Result<(Run, Result<()>)> {
        let times = (self.done - self.first, self.log.settled_step_s(), self.log.settled_busy_s());
        let figures = self.engine.figures(times);
        // Who was lost while the last checkpoint was written is told of there.
        let planned = match figures {
            Err(error) => return Err(self.take_saved().err().unwrap_or(error)),
            Ok(planned) => planned,
        };
        let writes = self.world.rank() == Rank(0) && self.seat.interrupt.signal().is_none();
        let whole = if writes { self.engine.machine.whole()? } else { None };
        let Session { job, seat, world, engine, log, progress, name, saved, .. } = self;
        drop(progress);
        let (built, raw_bytes) = (engine.built, engine.machine.program().raw_bytes() as f64);
        // The others may leave while rank 0 goes on to write.
        drop(engine);
        let codec = if name == plan::NAME { "none" } else { &name };
        if let Some(warning) = log.warning(codec).filter(|_| world.rank() == Rank(0)) {
            say(warning);
        }
        let rate = job.settings.limit(seat.place).map(Bandwidth::bytes_per_s);
        let tokens = job.recipe.batch * built.model.context();
        let mut run = log.run(name, tokens as f64, rate);
        if let Some(planned) = planned {
            put(&mut run, planned, (world, rate, raw_bytes));
        }
        let (checkpoint, kept) = match saved {
            Ok(path) => (path, Ok(())),
            Err(error) => (None, Err(error)),
        };
        run.checkpoint = checkpoint.map(|path| path.display().to_string());
        if let Some(mut whole) = whole {
            let bytes = usize::from(job.settings.sample_bytes);
            let writer = built.model.writer(bytes)?;
            let values = writer.parameters().iter().map(|parameter| whole.remove(&parameter.name));
            let options = Sampled { bytes, temperature: SAMPLE_TEMPERATURE, seed: job.recipe.seed };
            let text = values.collect::<Option<Vec<_>>>().and_then(|values| {
                // A model that cannot write has learnt all the same.
                writer.sample(&values, b"", &options).ok()
            });
            run.sample = text.map_or(String::new(), |text| harmless(&text));
        } else if let Some(path) = run.checkpoint.as_ref().filter(|_| writes) {
            say(format!("the model lies in parts: thinwire sample {path} lets it write"));
        }
        Ok((run, kept))
    }
}

/// Puts predictions and counts of a plan in the place of what buckets tell.
fn put(run: &mut Run, planned: Planned, (world, rate, raw): (World, Option<f64>, f64)) {
    let mine = planned.ranks.iter().find(|rank| rank.rank == world.rank().index());
    run.sent_bytes = mine.map_or(0.0, |rank| rank.counted_bytes as f64 / planned.steps as f64);
    run.raw_bytes = raw;
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
