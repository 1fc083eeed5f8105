//! One rank's planned training, from its machine to the last step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use thinwire_collective::Group;
use thinwire_plan::output::{counted, devices};
use thinwire_sync::StepRecord;
use thinwire_train::spmd::{Agreed, ExchangeOptions, Machine, initial};
use thinwire_train::{AdamWOptions, Batch, Pace, Sampler, Sampling, validation_batches};
use thinwire_wire::{Rank, World};

use super::build::Built;
use super::memory::Growth;
use super::{Request, checkpoints, figures};
use crate::output::say;
use crate::report::Planned;
use crate::training::folder::FolderLock;
use crate::training::interrupt::Interrupt;
use crate::training::log::{Log, Step};
use crate::training::machine;
use crate::training::progress::{News, Progress};
use crate::training::rank::VALIDATIONS;
use crate::training::trace::Trace;

/// A training under way.
pub struct Session<'a> {
    request: &'a Request,
    built: &'a Built,
    machine: Machine<'a>,
    sampler: Sampler,
    validation: Vec<Batch>,
    interrupt: &'a Interrupt,
    lock: &'a FolderLock,
    progress: Progress,
    log: Log,
    trace: Trace,
    growth: Growth,
    world: World,
    first: u64,
    done: u64,
    saved: Result<Option<PathBuf>>,
}

impl<'a> Session<'a> {
    /// A machine with its parameters, before the first step.
    ///
    /// # Errors
    /// If the text is too short, or the plan has no such rank.
    pub fn start(
        (request, built): (&'a Request, &'a Built),
        group: Group,
        (interrupt, lock): (&'a Interrupt, &'a FolderLock),
        trace: Trace,
    ) -> Result<Session<'a>> {
        let growth = Growth::from_now();
        let (file, seed) = (&built.file, request.recipe.seed);
        let (world, speaks) = (group.world(), group.world().rank() == Rank(0));
        // Every rank deals the whole batch, and cuts its part out of it.
        let sampling = Sampling {
            context: file.sequence,
            global_batch: file.batch,
            world: World::alone(),
            seed,
        };
        let mut sampler = Sampler::new(request.corpus.clone(), sampling)?;
        let validation = validation_batches(
            &request.corpus,
            file.sequence,
            file.batch,
            World::alone(),
            request.settings.validation_batches.into(),
        );
        let start = initial(&built.training.graph, seed);
        let machine =
            Machine::new(&built.training, &built.plan, group, &start, ExchangeOptions::default())?;
        let clip = request.recipe.clip;
        let mut machine = machine.with_gradient_norm_max((clip > 0.0).then_some(clip));
        let first = match &request.resume {
            Some(checkpoint) => {
                let state = (&mut machine, &mut sampler);
                let now = (&request.recipe, world.size());
                let (first, differing) = checkpoints::load(checkpoint, (built, now), state)?;
                differing.filter(|_| speaks).into_iter().for_each(say);
                first
            }
            None => 0,
        };
        let title = format!(
            "training {} on {}: {} of {}, {}",
            file.model,
            counted(world.size(), "rank"),
            counted(file.stage.len(), "stage"),
            devices(&file.mesh),
            counted(file.micro_batches, "micro-batch")
        );
        let progress = Progress::new(&title, first, request.recipe.steps, speaks);
        let log = Log::default();
        Ok(Session {
            request,
            built,
            machine,
            sampler,
            validation,
            interrupt,
            lock,
            progress,
            log,
            trace,
            growth,
            world,
            first,
            done: first,
            saved: Ok(None),
        })
    }

    /// All steps, and what they came to beside what was predicted.
    ///
    /// # Errors
    /// If a peer is lost, or the trace cannot be written.
    pub fn run(&mut self) -> Result<Planned> {
        let steps = self.request.recipe.steps;
        let mut stop = false;
        while self.done < steps && !stop {
            let (news, stopped) = self.step().with_context(|| format!("step {}", self.done))?;
            stop = stopped;
            let over = stop || self.done == steps;
            let validation = if self.is_validated() || over { self.validate()? } else { None };
            self.progress.tell(&News { validation, ..news });
            if let Some(policy) = &self.request.policy
                && (over || policy.every.is_some_and(|every| self.done.is_multiple_of(every)))
            {
                let of = (self.request, self.built);
                let state = (&mut self.machine, &self.sampler);
                let saved =
                    checkpoints::save(of, (policy, self.lock), state, (self.world, self.done));
                if saved.is_err() {
                    self.lock.discard(self.done);
                }
                self.log.pause();
                self.saved = saved.with_context(|| format!("saving step {}", self.done));
                if !over {
                    self.saved = Ok(std::mem::replace(&mut self.saved, Ok(None))?);
                }
            }
        }
        if stop && self.world.rank() == Rank(0) {
            let name = self.interrupt.signal().and_then(signal_hook::low_level::signal_name);
            let name = name.unwrap_or("a signal");
            let saved = self.saved.as_ref().ok().and_then(Option::as_ref);
            let saved = saved.map_or(String::new(), |path| format!("; {}", machine::go_on(path)));
            say(format!("stopped by {name} after step {} of {steps}{saved}", self.done));
        }
        // Who was lost while the last checkpoint was written is told of there.
        self.figures().map_err(|error| {
            let saved = std::mem::replace(&mut self.saved, Ok(None));
            saved.err().unwrap_or(error)
        })
    }

    /// Returns predictions and counts of all ranks.
    fn figures(&mut self) -> Result<Planned> {
        self.machine.settle()?;
        let (plan, step_s) = ((&self.built.file, &self.built.plan), self.log.settled_step_s());
        let memory_bytes = self.growth.bytes().unwrap_or(0);
        let steps = self.done - self.first;
        let times = (steps, step_s, self.log.settled_busy_s());
        figures::gather(&mut self.machine, plan, times, memory_bytes)
    }

    /// Bytes that a step of this rank would send if everything travelled as f32.
    pub fn raw_bytes(&self) -> f64 {
        self.machine.program().raw_bytes() as f64
    }

    /// All parameters, if this rank works with the whole of each.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn whole(&mut self) -> Result<Option<BTreeMap<String, Vec<f32>>>> {
        Ok(self.machine.whole()?)
    }

    /// The log, once it is complete, and the last checkpoint, on rank 0, or why it could not be
    /// written.
    pub fn finish(self) -> (Log, Result<Option<PathBuf>>) {
        (self.log, self.saved)
    }

    /// The validation loss; none if the text is too short to hold any out.
    fn validate(&mut self) -> Result<Option<f64>> {
        let (mut sum, mut count) = (0.0, 0.0);
        for at in 0..self.validation.len() {
            let inputs = self.built.text.inputs(&self.validation[at]);
            let loss = self.machine.evaluate(&inputs);
            sum += loss.with_context(|| format!("validating after step {}", self.done))?;
            count += 1.0;
        }
        let loss = (count > 0.0).then(|| sum / count);
        if let Some(loss) = loss {
            self.log.validated(self.done, loss);
        }
        Ok(loss)
    }

    fn is_validated(&self) -> bool {
        let every = (self.request.recipe.steps - self.first).div_ceil(VALIDATIONS).max(2);
        (self.done - self.first).is_multiple_of(every)
    }

    /// One step; whether any rank wants to stop after it.
    fn step(&mut self) -> Result<(News, bool)> {
        let (begun, waited) = (Instant::now(), self.machine.waited_s());
        let inputs = self.built.text.inputs(&self.sampler.next_batch());
        let learning_rate = self.request.learning_rate().at(self.done);
        let pace = Pace { learning_rate, gradient_scale: 1.0 };
        self.machine.say(self.interrupt.signal().unwrap_or(0) as f32);
        self.machine.step(&inputs, pace, &AdamWOptions::default())?;
        let Agreed { loss, said } = self.machine.agreed();
        let signal = said as i32;
        if signal != 0 {
            self.interrupt.follow(signal);
        }
        let wait_s = self.machine.waited_s() - waited;
        let record = StepRecord { step: self.done, wait_s, ..StepRecord::default() };
        let step_s = begun.elapsed().as_secs_f64();
        self.trace.step(&record, || figures::passes(self.machine.times()))?;
        let optimizer_s = self.machine.optimizer_s();
        let (number, skipped) = (self.done, !self.machine.gradient_norm().is_finite());
        // What ranks tell each other is in what they wait for.
        let agree_s = 0.0;
        self.log.step(Step { number, step_s, optimizer_s, agree_s, record, skipped }, loss);
        self.done += 1;
        let sent_bytes = self.machine.program().sent_bytes();
        let step_s = self.log.recent_step_s();
        let news = News { done: self.done, loss, step_s, sent_bytes, validation: None };
        Ok((news, signal != 0))
    }
}
