//! One rank of a training, as its session sees it: a replica of the whole model, or its part of a plan.

use std::collections::BTreeMap;
use std::time::Instant;

use thinwire_checkpoint::Draft;
use thinwire_collective::Group;
use thinwire_job::elastic::Wish;
use thinwire_link::mem;
use thinwire_report::training::{Passed, Planned};
use thinwire_sync::Error::Invalid;
use thinwire_sync::{Channel, Mode, RoundRecord, State, reshard};
use thinwire_wire::{Rank, World};

use super::adaptation::{Terms, Told};
use super::log::Step;
use super::planned::{self, Measured};
use super::rounds::{MODE, Rounds};
use super::{Computation, Settings};
use crate::checkpoint::{Checkpoint, write_exchange, write_shard, write_whole};
use crate::error::Error;
use crate::spmd::{
    Agreed, DetachedReplica, ExchangeOptions, Executor, Snapshot, Start, initial, part, zeros,
};
use crate::{AdamWOptions, Batch, LearningRate, Pace, Sampling};

/// Key, in the manifest, of whether all ranks exchange every gradient whole.
pub(super) const WHOLE: &str = "whole";

/// Key, in the manifest, of the order of gradients.
pub(super) const ORDER: &str = "order";

/// Key, in the manifest, of the plan, as the text of its file.
const PLANNED: &str = "planned";

const REORDERED: &str = "the checkpoint has other buckets of gradients: how gradients are sent is \
    chosen again";

/// Rank between two epochs, or between two batches of an epoch.
pub(super) struct Detached {
    /// Parameters of the rank, and the state of its optimiser.
    pub replica: DetachedReplica,
    /// Rounds of the rank; `None` if every step exchanges gradients.
    pub rounds: Option<Rounds>,
}

impl Detached {
    /// Continues among the ranks of a channel. Each of them either calls this or starts a new engine.
    ///
    /// # Errors
    /// If the settings of ranks differ, or a peer is lost. The call may be repeated with another channel.
    pub fn reform(&mut self, channel: &Channel) -> Result<(), Error> {
        match &mut self.rounds {
            Some(rounds) => rounds.reform(channel, self.replica.values_mut()),
            None => self.replica.reform(channel),
        }
    }

    /// Ends the connections of an epoch whose last step is complete.
    pub fn release(&mut self) {
        self.replica.release();
        self.rounds.iter_mut().for_each(Rounds::release);
    }
}

/// Rank that is training.
pub(super) struct Engine<'a> {
    /// The executor.
    pub executor: Executor<'a>,
    /// Model and plan.
    pub computation: &'a Computation,
    rate: LearningRate,
    adamw: AdamWOptions,
    terms: Terms,
    /// Exchange of parameters every few steps; `None` if every step exchanges gradients.
    rounds: Option<Rounds>,
}

impl<'a> Engine<'a> {
    /// Returns a rank before its first step. In a mode with rounds, the rank trains independently, and
    /// ranks receive each other's requests to end or change the epoch `lag` steps later.
    ///
    /// # Errors
    /// As [`Engine::start`], or if initial parameters differ between ranks.
    pub fn in_mode(
        settings: &Settings<'_>,
        channel: Channel,
        computation: &'a Computation,
        lag: usize,
    ) -> Result<Engine<'a>, Error> {
        if settings.mode.timetable().is_none() {
            return Engine::start(settings, channel, computation, settings.weights);
        }
        let alone = alone(settings);
        let engine = Engine::start(&apart(settings), alone, computation, settings.weights)?;
        let rounds = Rounds::start(channel, settings, &engine.executor, lag)?;
        Ok(engine.with_rounds(rounds))
    }

    /// Returns a rank that joins the rounds of other ranks, with the state of rank 0's optimiser.
    ///
    /// # Errors
    /// If the state belongs to another model, the settings of ranks differ, or a peer is lost.
    pub fn joining(
        settings: &Settings<'_>,
        channel: Channel,
        computation: &'a Computation,
        state: Snapshot,
    ) -> Result<Engine<'a>, Error> {
        let mut engine = Engine::over(&apart(settings), alone(settings), computation, &zeros)?;
        engine.executor.take_over(state)?;
        let rounds = Rounds::join(channel, settings, &mut engine.executor)?;
        Ok(engine.with_rounds(rounds))
    }

    fn with_rounds(self, rounds: Rounds) -> Engine<'a> {
        let executor = self.executor.drawing_as(u64::from(rounds.world().rank().0));
        Engine { executor, rounds: Some(rounds), ..self }
    }

    /// Returns a rank before its first step. Its parameters are taken from `weights`, or drawn if there are
    /// no weights. With `weights`, the parameters on servers begin as zeros.
    ///
    /// # Errors
    /// If ranks disagree, the plan has no such rank, or a tensor is missing or has another shape.
    pub fn start(
        settings: &Settings<'_>,
        channel: Channel,
        computation: &'a Computation,
        weights: Option<&thinwire_server::Checkpoint>,
    ) -> Result<Engine<'a>, Error> {
        let graph = &computation.training.graph;
        let Some(weights) = weights else {
            return Engine::over(settings, channel, computation, &initial(graph, settings.seed));
        };
        let mut values = BTreeMap::new();
        for (id, tensor) in graph.parameters() {
            if !computation.served.contains(&tensor.name) {
                values.insert(id, weights.values(&tensor.name, &tensor.shape)?);
            }
        }
        let start = |id, parts: &[_]| match values.get(&id) {
            Some(whole) => part(whole, &graph.tensors[id].shape, parts),
            None => zeros(id, parts),
        };
        Engine::over(settings, channel, computation, &start)
    }

    /// Returns a rank before its first step. Its parameters begin as `start` says. A rank that takes over
    /// the state of others begins with zeros.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn over(
        settings: &Settings<'_>,
        channel: Channel,
        computation: &'a Computation,
        start: Start<'_>,
    ) -> Result<Engine<'a>, Error> {
        let (training, plan) = (&computation.training, &computation.plan);
        let exchange = exchange(settings, computation);
        let executor = Executor::over(training, plan, channel, start, exchange)?;
        Engine::of(settings, executor, computation)
    }

    /// Returns a replica that continues in another epoch, after [`Detached::reform`] over the channel.
    ///
    /// # Errors
    /// If it belongs to another model.
    pub fn resume(
        settings: &Settings<'_>,
        channel: Channel,
        computation: &'a Computation,
        detached: Detached,
    ) -> Result<Engine<'a>, Error> {
        let Detached { mut replica, rounds } = detached;
        let Some(rounds) = rounds else {
            return Engine::again(settings, channel, computation, replica);
        };
        let alone = alone(settings);
        replica.reform(&alone)?;
        let engine = Engine::again(&apart(settings), alone, computation, replica)?;
        Ok(engine.with_rounds(rounds))
    }

    fn again(
        settings: &Settings<'_>,
        channel: Channel,
        computation: &'a Computation,
        replica: DetachedReplica,
    ) -> Result<Engine<'a>, Error> {
        let (training, plan) = (&computation.training, &computation.plan);
        let exchange = exchange(settings, computation);
        let executor = Executor::resume(training, plan, channel, replica, exchange)?;
        Engine::of(settings, executor, computation)
    }

    /// Ends an epoch, or the steps with one batch.
    pub fn detach(self) -> Detached {
        Detached { replica: self.executor.into_detached(), rounds: self.rounds }
    }

    fn of(
        settings: &Settings<'_>,
        executor: Executor<'a>,
        computation: &'a Computation,
    ) -> Result<Engine<'a>, Error> {
        let executor = executor.with_gradient_norm_max(settings.gradient_norm_max);
        let (rate, adamw) = (settings.rate, settings.adamw);
        let terms = Terms::new(settings.batch);
        let mut engine = Engine { executor, computation, rate, adamw, terms, rounds: None };
        engine.set_terms(settings, terms)?;
        Ok(engine)
    }

    /// Applies these terms (batch, factor of the learning rate, error budget) from the next step on.
    ///
    /// # Errors
    /// If this rank has no part of the batch.
    pub fn set_terms(&mut self, settings: &Settings<'_>, terms: Terms) -> Result<(), Error> {
        self.terms = terms;
        let world = self.executor.sync().world();
        let share = self.sampling(settings, world).share();
        if let Some(budget) = terms.error_budget {
            self.executor.sync_mut().set_error_budget(f64::from(budget));
        }
        self.executor.set_share(share)
    }

    /// Returns the terms in force on this rank.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Returns the error budget of `auto`; `None` if codecs were named.
    pub fn error_budget(&self, settings: &Settings<'_>) -> Option<f64> {
        let sync = &settings.exchange.sync;
        let budget = self.terms.error_budget.map_or(sync.error_budget, f64::from);
        Some(budget).filter(|_| sync.policy.keeps_a_budget())
    }

    /// Returns the settings for dividing batches: under a plan, every rank reads the whole batch and cuts its
    /// part out of it.
    pub fn sampling(&self, settings: &Settings<'_>, world: World) -> Sampling {
        Sampling {
            context: self.computation.context,
            global_batch: self.terms.batch,
            unit: self.computation.unit,
            world: if self.is_planned() { World::alone() } else { world },
            seed: settings.seed,
        }
    }

    /// Returns whether this rank has a part of a plan.
    pub fn is_planned(&self) -> bool {
        self.computation.file.is_some()
    }

    /// Takes a step that began at `begun`, and sends the other ranks this rank's wish about the end of
    /// the epoch. Returns the figures of the step and the highest wish of any rank.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn step(
        &mut self,
        batch: &Batch,
        begun: Instant,
        wish: Wish,
    ) -> Result<(Step, Wish), Error> {
        let (waited_s, sent_bytes) = (self.executor.waited_s(), self.executor.sent_bytes());
        let number = self.executor.next_step();
        let learning_rate = self.terms.rate * self.rate.at(self.terms.scheduled(number));
        let pace = Pace { learning_rate, gradient_scale: 1.0 };
        self.executor.say(wish.number() as f32);
        self.executor.step(&self.computation.modality.inputs(batch), pace, &self.adamw)?;
        let Agreed { loss, said } = self.executor.agreed();
        let (wish, record) = match &mut self.rounds {
            Some(rounds) => rounds.step(&mut self.executor, wish)?,
            None => (Wish::of(said as i32), RoundRecord::default()),
        };
        let step = Step {
            number,
            step_s: begun.elapsed().as_secs_f64(),
            optimizer_s: self.executor.optimizer_s(),
            wait_s: self.executor.waited_s() - waited_s + record.wait_s,
            loss,
            sent_bytes: self.executor.sent_bytes() - sent_bytes + record.sent_bytes,
            record: self.executor.record(),
            skipped: !self.executor.gradient_norm().is_finite(),
            rounds: record,
            adapted: None,
        };
        Ok((step, wish))
    }

    /// Returns the notes of all ranks, each made by [`Executor::note`], since the last call. They belong to
    /// the last step, or to some steps before the end of the last round.
    pub fn told(&mut self) -> Vec<Told> {
        match &mut self.rounds {
            Some(rounds) => rounds.told(),
            None => {
                let notes = self.executor.notes().map(<[f32]>::to_vec).collect();
                vec![Told { step: self.executor.next_step() - 1, notes }]
            }
        }
    }

    /// Returns the passes of the last step; empty for a replica, which computes one micro-batch after the
    /// other.
    pub fn passes(&self) -> Vec<Passed> {
        if self.is_planned() { planned::passes(self.executor.times()) } else { Vec::new() }
    }

    /// Returns this rank among the ranks of the job that train together.
    pub fn world(&self) -> World {
        self.rounds.as_ref().map_or(self.executor.world(), Rounds::world)
    }

    /// Returns the mode, if parameters are exchanged every few steps.
    pub fn mode(&self) -> Option<Mode> {
        self.rounds.as_ref().map(Rounds::mode)
    }

    /// Waits until all exchanges have ended.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn settle(&mut self) -> Result<(), Error> {
        match &mut self.rounds {
            Some(rounds) => rounds.settle(&mut self.executor),
            None => self.executor.settle(),
        }
    }

    /// Gives all ranks the same parameters after the last step, if each has trained independently. Returns
    /// the record of rounds since the last step.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn unite(&mut self) -> Result<RoundRecord, Error> {
        match &mut self.rounds {
            Some(rounds) => rounds.finish(&mut self.executor),
            None => {
                self.executor.end_early()?;
                Ok(RoundRecord::default())
            }
        }
    }

    /// Gathers the numbers of all ranks, in the order of ranks. If each rank trains independently, call
    /// [`Engine::settle`] first.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        match &self.rounds {
            Some(rounds) => rounds.gather(mine),
            None => self.executor.gather(mine),
        }
    }

    /// Gathers the bytes of all ranks, in the order of ranks. Call [`Engine::settle`] first.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        match &self.rounds {
            Some(rounds) => rounds.gather_bytes(mine),
            None => self.executor.gather_bytes(mine),
        }
    }

    /// Returns the mean loss of all ranks over batches, without training.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn evaluate(&mut self, batches: &[Batch]) -> Result<f64, Error> {
        let inputs = batches.iter().map(|batch| self.computation.modality.inputs(batch));
        let losses = inputs.map(|inputs| self.executor.evaluate(&inputs));
        Ok(losses.sum::<Result<f64, Error>>()? / batches.len() as f64)
    }

    /// Returns the seconds of the forward and backward passes of a batch without any exchange, on all ranks
    /// at the same time; `None` under a plan, since ranks cannot compute without each other.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn alone_s(&mut self, batch: &Batch) -> Result<Option<f64>, Error> {
        if self.is_planned() {
            return Ok(None);
        }
        let inputs = self.computation.modality.inputs(batch);
        self.executor.gather(&[0.0])?;
        let begun = Instant::now();
        self.executor.compute_gradients(&inputs)?;
        let seconds = begun.elapsed().as_secs_f64();
        self.executor.gather(&[0.0])?;
        Ok(Some(seconds))
    }

    /// Writes this rank's files of a checkpoint: its part of the model (without a plan, rank 0 writes all of
    /// it) and the state of its exchange. Returns the plan of exchanges, for the manifest.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(
        &mut self,
        draft: &Draft,
        rank: Rank,
    ) -> Result<String, thinwire_checkpoint::Error> {
        let description = format!("a model by thinwire: {}", self.computation.description);
        if let Some(rounds) = &self.rounds {
            let state = rounds.state(&self.executor);
            write_exchange(draft, rank, &state.tensors)?;
            if rank == Rank(0) {
                write_whole(draft, &rounds.model(&mut self.executor), &description)?;
            }
            return Ok(state.progress);
        }
        let state = self.executor.exchange_state();
        write_exchange(draft, rank, &state.tensors)?;
        match self.is_planned() {
            true => write_shard(draft, rank, &self.executor.shards())?,
            false if rank == Rank(0) => {
                write_whole(draft, &self.executor.shards(), &description)?;
            }
            false => {}
        }
        Ok(state.plan)
    }

    /// Returns the order in which gradients are sent. Buckets depend on this order, which may differ
    /// between versions.
    pub fn order(&self) -> String {
        let names = self.executor.sync().parameters().iter().map(|parameter| &parameter.name[..]);
        let names = names.collect::<Vec<_>>().join(" ");
        format!("{:08x}", thinwire_wire::checksum(names.as_bytes()))
    }

    /// Continues from a checkpoint, with or without a plan. Restores residuals if the exchanges are the same,
    /// and otherwise returns a notice.
    ///
    /// # Errors
    /// If it is damaged or belongs to another model.
    pub fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        world: World,
    ) -> Result<Option<String>, Error> {
        self.executor.restore(checkpoint)?;
        if let Some(rounds) = &mut self.rounds {
            return rounds.restore(checkpoint, &mut self.executor);
        }
        let progress = checkpoint.progress();
        let was_whole = !checkpoint.is_sharded() || progress.config[WHOLE] == true;
        let whole = was_whole && self.executor.exchanges_whole();
        let same_plan = match &self.computation.file {
            None => !checkpoint.is_sharded(),
            Some(file) => progress.config[PLANNED]["file"] == file.text(),
        };
        if let Some(mode) = progress.config[MODE].as_str() {
            return Ok(Some(format!(
                "the checkpoint is of mode {mode}: changes not exchanged yet are dropped"
            )));
        }
        if !(whole || same_plan) || !checkpoint.has_exchange() {
            // An earlier version has kept residuals of a plan beside its parts.
            let owes = match checkpoint.has_exchange() {
                true => !checkpoint.exchange(Rank(0))?.is_empty(),
                false => !progress.plan.is_empty(),
            };
            let dropped = match (self.is_planned(), checkpoint.is_sharded()) {
                (true, true) => "the checkpoint is of another plan",
                (true, false) => "the checkpoint is of no plan",
                (false, _) => "the checkpoint is of a planned training",
            };
            let dropped = format!("{dropped}: the residuals of its codecs are dropped");
            return Ok(owes.then_some(dropped));
        }
        let alike = progress.config[ORDER].as_str() == Some(&self.order()[..]);
        let read = |rank: usize| Ok::<_, Error>(checkpoint.exchange(Rank(rank as u32))?);
        let tensors = match whole {
            true => reshard(world, progress.world as usize, read)?,
            false => read(world.rank().index())?,
        };
        if same_plan {
            self.executor.restore_residuals(&tensors)?;
        }
        let state = State { tensors, plan: progress.plan.clone() };
        let sync = self.executor.sync_mut();
        // Where gradients leave in another order than they did, or by another plan or codec, what is owed is
        // taken up, and the plan of buckets is not.
        let loaded = match alike && same_plan && state.check(sync.options()).is_ok() {
            true => sync.load(&state),
            false => sync.load_tensors(&state),
        };
        loaded.map_err(hint_at_flags)?;
        Ok((!alike).then(|| REORDERED.to_owned()))
    }

    /// Waits for all exchanges, and returns predictions and counts of all ranks; `None` without a plan.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn figures(&mut self, measured: &Measured) -> Result<Option<Planned>, Error> {
        self.executor.settle()?;
        let Some(file) = &self.computation.file else { return Ok(None) };
        planned::gather(&self.executor, file, &self.computation.plan, measured).map(Some)
    }
}

/// Returns the channel of a rank that exchanges nothing.
pub(super) fn alone(settings: &Settings<'_>) -> Channel {
    Channel::new(Group::new(mem::alone()).with_timeout(settings.exchange.sync.timeout))
}

/// Returns the settings of a rank whose gradients stay on it.
fn apart<'s>(settings: &Settings<'s>) -> Settings<'s> {
    let timeout = settings.exchange.sync.timeout;
    let sync = thinwire_sync::Options { timeout, ..thinwire_sync::Options::default() };
    let exchange = ExchangeOptions { sync, is_local: true, ..settings.exchange.clone() };
    Settings { exchange, ..settings.clone() }
}

/// Returns the options of the exchange of a rank's gradients.
fn exchange(settings: &Settings<'_>, computation: &Computation) -> ExchangeOptions {
    let sketches = settings.needs_noise();
    let delay = match settings.mode {
        Mode::Delayed { steps } => steps,
        _ => 0,
    };
    let remote = computation.served.clone();
    ExchangeOptions { remote, sketches, delay, ..settings.exchange.clone() }
}

/// Adds to an error of an exchange the flag that would fix it.
fn hint_at_flags(error: thinwire_sync::Error) -> Error {
    let hint = match &error {
        Invalid(detail) if detail.contains("--bucket-bytes") => {
            "give --bucket-bytes as before, or leave --bucket-bytes out if it was not given before"
        }
        Invalid(detail) if detail.contains("momentum correction") => {
            "give --momentum-correction FACTOR as before"
        }
        _ => return error.into(),
    };
    Error::from(error).with_hint(hint)
}
