//! One rank's training, from the handshake to the last step.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use thinwire_collective::Group;
use thinwire_job::{Meeting, Place};
use thinwire_link::Bandwidth;
use thinwire_plan::output::counted;
use thinwire_sync::Policy;
use thinwire_train::spmd::{GraphModel, Sampled};
use thinwire_train::{Batch, Sampler, Sampling, Trainer, validation_batches};
use thinwire_wire::Rank;

use super::checkpoints;
use super::folder::FolderLock;
use super::interrupt::Interrupt;
use super::job::TrainingJob;
use super::log::{Log, Step};
use super::machine;
use super::progress::{News, Progress};
use super::shared;
use super::trace::Trace;
use crate::output::{harmless, say};
use crate::report::Run;

/// Number of measurements of the validation loss in a training.
pub(super) const VALIDATIONS: u64 = 10;
/// Number of measurements of compute alone, in the second half of the steps.
const ALONE_RUNS: u64 = 25;
const SAMPLE_TEMPERATURE: f32 = 0.7;

/// Trains under one codec. The run is complete on rank 0 only; beside it stands whether the last
/// checkpoint, where one was asked for, could be written.
///
/// # Errors
/// If ranks disagree, one is lost, or a checkpoint cannot be read or written.
pub fn train(
    job: &TrainingJob,
    codec: &Policy,
    (place, meeting): (&Place, &Meeting),
    (interrupt, lock): (&Interrupt, &FolderLock),
    trace: Trace,
) -> Result<(Run, Result<()>)> {
    let model = job.recipe.model.learner(job.recipe.batch / place.world as usize)?;
    let mut session =
        Session::start((job, &model), codec, (place, meeting), (interrupt, lock), trace)?;
    let saved = session.run()?;
    let Session { trainer, log, progress, .. } = session;
    drop(progress);
    if let Some(warning) = log.warning(&codec.to_string()).filter(|_| place.rank == 0) {
        say(warning);
    }
    let values = trainer.values();
    // The others may leave while rank 0 goes on to write.
    drop(trainer);
    let tokens = (job.recipe.batch * job.recipe.model.context()) as f64;
    let rate = job.settings.limit(place).map(Bandwidth::bytes_per_s);
    let mut run = log.run(codec.to_string(), tokens, rate);
    let (checkpoint, kept) = match saved {
        Ok(path) => (path, Ok(())),
        Err(error) => (None, Err(error)),
    };
    run.checkpoint = checkpoint.map(|path| path.display().to_string());
    if place.rank == 0 && interrupt.signal().is_none() {
        let bytes = usize::from(job.settings.sample_bytes);
        let writer = job.recipe.model.writer(bytes)?;
        run.sample = sample(&writer, &values, (bytes, job.recipe.seed));
    }
    Ok((run, kept))
}

/// So many bytes of text of the model, drawn by a seed, if it can write any.
pub(super) fn sample(
    writer: &GraphModel,
    values: &[Vec<f32>],
    (bytes, seed): (usize, u64),
) -> String {
    let options = Sampled { bytes, temperature: SAMPLE_TEMPERATURE, seed };
    let written = writer.sample(values, b"", &options);
    written.map_or(String::new(), |text| harmless(&text))
}

/// A training under way.
struct Session<'a> {
    job: &'a TrainingJob,
    trainer: Trainer<'a>,
    sampler: Sampler,
    validation: Vec<Batch>,
    interrupt: &'a Interrupt,
    lock: &'a FolderLock,
    progress: Progress,
    log: Log,
    trace: Trace,
    first: u64,
}

impl<'a> Session<'a> {
    fn start(
        (job, model): (&'a TrainingJob, &'a GraphModel),
        codec: &Policy,
        (place, meeting): (&Place, &Meeting),
        (interrupt, lock): (&'a Interrupt, &'a FolderLock),
        trace: Trace,
    ) -> Result<Session<'a>> {
        let recipe = &job.recipe;
        interrupt.end_at_once();
        let world = place.world()?;
        let (context, global_batch) = (recipe.model.context(), recipe.batch);
        let sampling = Sampling { context, global_batch, world, seed: recipe.seed };
        let mut sampler = Sampler::new(job.corpus.clone(), sampling)?;
        let rows = global_batch / world.size();
        let most = job.settings.validation_batches.into();
        let validation = validation_batches(&job.corpus, context, rows, world, most);
        let micro_batches = rows / model.rows();
        let group = Group::new(meeting.link()?).with_timeout(job.settings.link.timeout());
        let options = thinwire_train::Options { micro_batches, ..job.options() };
        let sync = sync_options(job, codec, place);
        let mut trainer = Trainer::new(model, group, sync, options, recipe.seed)?;
        trainer.exchange().agree(&job.facts())?;
        shared::check_folder(job.policy.as_ref(), place.rank, |mine| {
            Ok(trainer.exchange().gather(mine)?)
        })?;
        interrupt.remember();
        if let Some(checkpoint) = &job.resume {
            checkpoints::load(checkpoint, &mut trainer, &mut sampler)?;
        }
        let first = trainer.next_step();
        let speaks = world.rank() == Rank(0);
        if speaks {
            job.said_of_resuming(place.world)?.into_iter().for_each(say);
            codec.warnings().into_iter().for_each(|warning| say(format!("warning: {warning}")));
        }
        let progress =
            Progress::new(&title(job, codec, place, &trainer), first, recipe.steps, speaks);
        let log = Log::default();
        Ok(Session {
            job,
            trainer,
            sampler,
            validation,
            interrupt,
            lock,
            progress,
            log,
            trace,
            first,
        })
    }

    /// All steps; the path of the last checkpoint, on rank 0, or why that could not be written.
    fn run(&mut self) -> Result<Result<Option<PathBuf>>> {
        let steps = self.job.recipe.steps;
        let mut saved = Ok(None);
        while self.trainer.next_step() < steps {
            let (batch, news, stop) = self.step()?;
            let done = news.done;
            let over = stop || done == steps;
            let validation =
                if self.is_validated(done) || over { self.validate(done)? } else { None };
            self.progress.tell(&News { validation, ..news });
            if self.is_measured_alone(done) {
                self.alone(&batch).with_context(|| format!("measuring after step {done}"))?;
            }
            if let Some(policy) = &self.job.policy
                && (over || policy.every.is_some_and(|every| done.is_multiple_of(every)))
            {
                self.log.pause();
                let kept = (policy, self.lock);
                let written = checkpoints::save(self.job, kept, &self.trainer, &self.sampler);
                if written.is_err() {
                    self.lock.discard(done);
                }
                saved = written.with_context(|| format!("saving step {done}"));
                if !over {
                    saved = Ok(saved?);
                }
            }
            if stop {
                self.say_stopped(done, saved.as_ref().ok().and_then(Option::as_ref));
                break;
            }
        }
        Ok(saved)
    }

    /// One step; whether any rank wants to stop after it.
    fn step(&mut self) -> Result<(Batch, News, bool)> {
        let begun = Instant::now();
        let batch = self.sampler.next_batch();
        let report = self.trainer.step(&batch)?;
        let waiting = Instant::now();
        let signal = self.interrupt.signal().unwrap_or(0);
        let agreed = self.trainer.exchange().gather(&[report.loss, signal as f32]);
        let all = agreed.with_context(|| format!("ending step {}", report.step))?;
        let agree_s = waiting.elapsed().as_secs_f64();
        let (loss, signal) = mean_and_signal(&all);
        if signal != 0 {
            self.interrupt.follow(signal);
        }
        let record = self.trainer.exchange().record().clone();
        self.trace.step(&record, Vec::new)?;
        let sent_bytes = record.total(|bucket| bucket.sent_bytes);
        let step = Step {
            number: report.step,
            step_s: begun.elapsed().as_secs_f64(),
            optimizer_s: report.optimizer_s,
            agree_s,
            record,
            skipped: report.skipped,
        };
        self.log.step(step, loss);
        let done = self.trainer.next_step();
        let news =
            News { done, loss, step_s: self.log.recent_step_s(), sent_bytes, validation: None };
        Ok((batch, news, signal != 0))
    }

    /// The validation loss over all ranks; none if the text is too short to hold any out.
    fn validate(&mut self, done: u64) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let mine = self.trainer.loss(&self.validation)?;
        let all = self.trainer.exchange().gather(&[mine as f32]);
        let all = all.with_context(|| format!("validating after step {done}"))?;
        let loss = all.iter().map(|loss| f64::from(*loss)).sum::<f64>() / all.len() as f64;
        self.log.validated(done, loss);
        Ok(Some(loss))
    }

    /// Forward and backward of a batch with nothing going out, in all ranks at the same time.
    fn alone(&mut self, batch: &Batch) -> Result<()> {
        self.trainer.exchange().barrier()?;
        let begun = Instant::now();
        self.trainer.compute(batch)?;
        self.log.alone(begun.elapsed().as_secs_f64());
        Ok(self.trainer.exchange().barrier()?)
    }

    fn is_validated(&self, done: u64) -> bool {
        let every = (self.job.recipe.steps - self.first).div_ceil(VALIDATIONS).max(1);
        (done - self.first).is_multiple_of(every)
    }

    fn is_measured_alone(&self, done: u64) -> bool {
        let (steps, done) = (self.job.recipe.steps - self.first, done - self.first);
        let every = (steps / 2 / ALONE_RUNS).max(1);
        2 * done > steps && done.is_multiple_of(every)
    }

    fn say_stopped(&self, done: u64, saved: Option<&PathBuf>) {
        if self.trainer.exchange().world().rank() == Rank(0) {
            let name = self.interrupt.signal().and_then(signal_hook::low_level::signal_name);
            let (name, steps) = (name.unwrap_or("a signal"), self.job.recipe.steps);
            let saved = saved.map_or(String::new(), |path| format!("; {}", machine::go_on(path)));
            say(format!("stopped by {name} after step {done} of {steps}{saved}"));
        }
    }
}

fn sync_options(job: &TrainingJob, codec: &Policy, place: &Place) -> thinwire_sync::Options {
    let usual = thinwire_sync::Options::default();
    thinwire_sync::Options {
        policy: codec.clone(),
        algorithm: job.exchange.algorithm.0,
        bucket_bytes: job.exchange.bucket_bytes,
        seed: job.recipe.seed,
        error_budget: match codec.keeps_a_budget() {
            true => job.exchange.error_budget,
            false => usual.error_budget,
        },
        feedback: match codec.leaves_a_residual() {
            true => job.exchange.feedback,
            false => usual.feedback,
        },
        momentum: job.momentum(),
        warm_up_steps: warm_up_steps(job, codec),
        timeout: job.settings.link.timeout(),
        local_ranks: Some(place.local_world as usize),
        ..usual
    }
}

/// The warm-up of a codec: as requested, else the codec's default unless that exceeds a fifth of
/// the steps.
pub(super) fn warm_up_steps(job: &TrainingJob, codec: &Policy) -> u64 {
    let asked = job.exchange.warmup_steps.filter(|_| matches!(codec, Policy::Fixed(_)));
    let suits = Some(codec.warm_up_steps()).filter(|steps| *steps <= job.recipe.steps / 5);
    asked.or(suits).unwrap_or(0)
}

fn title(job: &TrainingJob, codec: &Policy, place: &Place, trainer: &Trainer<'_>) -> String {
    let elements: usize =
        trainer.model().parameters().iter().map(|parameter| parameter.elements()).sum();
    let millions = crate::figures::digits(elements as f64 / 1e6);
    let link = job.settings.link.describe(job.settings.limit(place), place);
    format!(
        "training {millions} M parameters on {} with codec {codec}, {}, link: {link}",
        job.data,
        counted(place.world as usize, "rank")
    )
}

/// The mean loss, and the highest signal that any rank has got.
fn mean_and_signal(all: &[f32]) -> (f64, i32) {
    let pairs = all.chunks_exact(2);
    let ranks = pairs.len() as f64;
    let (sum, signal) = pairs.fold((0.0, 0.0_f32), |(sum, signal), pair| {
        (sum + f64::from(pair[0]), signal.max(pair[1]))
    });
    (sum / ranks, signal as i32)
}
