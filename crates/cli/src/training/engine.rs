//! One rank of a training, as its session sees it: a replica of the whole model, or its part of a plan.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, anyhow};
use thinwire_job::elastic::Wish;
use thinwire_plan::report::{counted, devices};
use thinwire_report::training::{Passed, Planned};
use thinwire_sync::Error::Invalid;
use thinwire_sync::{Channel, Policy, State, reshard};
use thinwire_train::checkpoint::{Checkpoint, Draft, write_exchange, write_shard, write_whole};
use thinwire_train::spmd::{
    Agreed, Codecs, DetachedReplica, ExchangeOptions, Executor, Start, initial, part, zeros,
};
use thinwire_train::{AdamWOptions, Batch, Gradients, LearningRate, Pace, Sampling};
use thinwire_wire::{Rank, World};

use super::job::TrainingJob;
use super::job_role::Seat;
use super::log::Step;
use super::model::Model;
use super::plan::{self, Built, KeptPlan, Measured};
use super::settings::GradDtype;
use crate::failure::hinted;
use crate::memory::Growth;
use crate::samples::timed;

/// Key in the manifest of whether all ranks exchange every gradient whole.
pub const WHOLE: &str = "whole";

/// Key of the order of gradients in the manifest.
pub const ORDER: &str = "order";

const REORDERED: &str =
    "the checkpoint's gradients were in other buckets: how they travel is chosen anew";

/// Rank at work.
pub struct Engine<'a> {
    /// The executor.
    pub machine: Executor<'a>,
    /// Model and plan.
    pub built: &'a Built,
    rate: LearningRate,
    adamw: AdamWOptions,
    growth: Growth,
}

impl<'a> Engine<'a> {
    /// A rank before its first step, whose gradients travel by a codec or as the plan says. Its parameters are
    /// those of `weights` where there are any, except those on servers, else drawn.
    ///
    /// # Errors
    /// If ranks disagree, the plan has no such rank, or a tensor is missing or has another shape.
    pub fn start(
        job: &TrainingJob,
        codec: Option<&Policy>,
        seat: &Seat<'_>,
        channel: Channel,
        built: &'a Built,
        weights: Option<&thinwire_server::Checkpoint>,
    ) -> Result<Engine<'a>> {
        let graph = &built.training.graph;
        let Some(weights) = weights else {
            let start = initial(graph, job.recipe.seed);
            return Engine::over(job, codec, seat, channel, built, &start);
        };
        let mut values = BTreeMap::new();
        for (id, tensor) in graph.parameters() {
            if !built.served.contains(&tensor.name) {
                values.insert(id, weights.values(&tensor.name, &tensor.shape)?);
            }
        }
        let start = |id, parts: &[_]| match values.get(&id) {
            Some(whole) => part(whole, &graph.tensors[id].shape, parts),
            None => zeros(id, parts),
        };
        Engine::over(job, codec, seat, channel, built, &start)
    }

    /// A rank before its first step, whose parameters begin as `start` says; one that takes over the state of
    /// the others begins with zeros.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn over(
        job: &TrainingJob,
        codec: Option<&Policy>,
        seat: &Seat<'_>,
        channel: Channel,
        built: &'a Built,
        start: Start<'_>,
    ) -> Result<Engine<'a>> {
        let exchange = exchange(job, codec, seat, built);
        let machine = Executor::over(&built.training, &built.plan, channel, start, exchange)?;
        Engine::of(job, machine, built)
    }

    /// A replica that continues in another epoch, after its exchange was re-formed over the channel.
    ///
    /// # Errors
    /// If the model is another one.
    pub fn resume(
        job: &TrainingJob,
        codec: Option<&Policy>,
        seat: &Seat<'_>,
        channel: Channel,
        built: &'a Built,
        detached: DetachedReplica,
    ) -> Result<Engine<'a>> {
        let (training, plan) = (&built.training, &built.plan);
        let exchange = exchange(job, codec, seat, built);
        Engine::of(job, Executor::resume(training, plan, channel, detached, exchange)?, built)
    }

    fn of(job: &TrainingJob, machine: Executor<'a>, built: &'a Built) -> Result<Engine<'a>> {
        let machine = machine.with_gradient_norm_max(job.recipe.gradient_norm_max());
        let adamw = job.recipe.adamw(&job.exchange);
        let mut engine = Engine {
            machine,
            built,
            rate: job.recipe.learning_rate(),
            adamw,
            growth: Growth::from_now(),
        };
        let world = engine.machine.sync().world();
        let share = engine.sampling(job, world).share();
        engine.machine.set_share(share)?;
        Ok(engine)
    }

    /// Words about the training for its begin.
    pub fn title(&self, job: &TrainingJob, codec: Option<&Policy>, seat: &Seat<'_>) -> String {
        let ranks = counted(seat.place.world as usize, "rank");
        let codec = codec.map_or(String::new(), |codec| format!(" with codec {codec}"));
        let Some(file) = &self.built.file else {
            let parameters = self.built.training.graph.parameters();
            let elements: usize = parameters.map(|(_, tensor)| tensor.elements()).sum();
            let millions = thinwire_report::figures::digits(elements as f64 / 1e6);
            let link = job.settings.link.describe(job.settings.limit(seat.place), seat.place);
            let data = &job.data;
            return format!(
                "training {millions} M parameters on {data}{codec}, {ranks}, link: {link}"
            );
        };
        let stages = counted(file.stage.len(), "stage");
        let (mesh, micro_batches) =
            (devices(&file.mesh), counted(file.micro_batches, "micro-batch"));
        format!("training {}{codec} on {ranks}: {stages} of {mesh}, {micro_batches}", file.model)
    }

    /// Returns how batches are dealt: under a plan every rank deals the whole batch, and cuts its part
    /// out of it.
    pub fn sampling(&self, job: &TrainingJob, world: World) -> Sampling {
        Sampling {
            context: self.built.model.context(),
            global_batch: job.recipe.batch,
            unit: self.built.unit,
            world: if self.is_planned() { World::alone() } else { world },
            seed: job.recipe.seed,
        }
    }

    /// Whether this rank has a part of a plan.
    pub fn is_planned(&self) -> bool {
        self.built.file.is_some()
    }

    /// Takes a step that began then, and tells the others of a wish; returns the step and the highest wish of
    /// any rank.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn step(&mut self, batch: &Batch, begun: Instant, wish: Wish) -> Result<(Step, Wish)> {
        let (waited_s, sent_bytes) = (self.machine.waited_s(), self.machine.sent_bytes());
        let number = self.machine.next_step();
        let pace = Pace { learning_rate: self.rate.at(number), gradient_scale: 1.0 };
        self.machine.say(wish.number() as f32);
        self.machine.step(&self.built.modality.inputs(batch), pace, &self.adamw)?;
        let Agreed { loss, said } = self.machine.agreed();
        let step = Step {
            number,
            step_s: begun.elapsed().as_secs_f64(),
            optimizer_s: self.machine.optimizer_s(),
            wait_s: self.machine.waited_s() - waited_s,
            loss,
            sent_bytes: self.machine.sent_bytes() - sent_bytes,
            record: self.machine.sync().record().clone(),
            skipped: !self.machine.gradient_norm().is_finite(),
        };
        Ok((step, Wish::of(said as i32)))
    }

    /// Passes of the last step; none of a replica, which has but one micro-batch after the other.
    pub fn passes(&self) -> Vec<Passed> {
        if self.is_planned() { plan::passes(self.machine.times()) } else { Vec::new() }
    }

    /// Returns the mean loss of all ranks over batches, without training.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn evaluate(&mut self, batches: &[Batch]) -> Result<f64> {
        let inputs = batches.iter().map(|batch| self.built.modality.inputs(batch));
        let losses = inputs.map(|inputs| self.machine.evaluate(&inputs));
        Ok(losses.sum::<Result<f64, _>>()? / batches.len() as f64)
    }

    /// Returns the seconds of forward and backward of a batch with nothing going out, in all ranks at
    /// the same time; none under a plan, where ranks cannot work without each other.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn alone_s(&mut self, batch: &Batch) -> Result<Option<f64>> {
        if self.is_planned() {
            return Ok(None);
        }
        let inputs = self.built.modality.inputs(batch);
        self.machine.gather(&[0.0])?;
        let seconds = timed(|| self.machine.compute_gradients(&inputs))?;
        self.machine.gather(&[0.0])?;
        Ok(Some(seconds))
    }

    /// Writes this rank's files of a checkpoint: its part of the model, of which rank 0 has all without a
    /// plan, and what its exchange keeps. Returns the plan of exchanges, for the manifest.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, draft: &Draft, rank: Rank) -> Result<String, thinwire_checkpoint::Error> {
        let state = self.machine.exchange_state();
        write_exchange(draft, rank, &state.tensors)?;
        let model = &self.built.model;
        match self.is_planned() {
            true => write_shard(draft, rank, &self.machine.shards())?,
            false if rank == Rank(0) => {
                let description = format!("a model by thinwire: {}", model.describe());
                write_whole(draft, &self.machine.shards(), &description)?;
            }
            false => {}
        }
        Ok(state.plan)
    }

    /// Order in which gradients leave, which buckets follow: another version may have another one.
    pub fn order(&self) -> String {
        let names = self.machine.sync().parameters().iter().map(|parameter| &parameter.name[..]);
        let names = names.collect::<Vec<_>>().join(" ");
        format!("{:08x}", thinwire_wire::checksum(names.as_bytes()))
    }

    /// Takes up a checkpoint, with or without a plan. Residuals are taken up where exchanges are
    /// the same; a notice says where they are not.
    ///
    /// # Errors
    /// If it is damaged or of another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint, world: World) -> Result<Option<String>> {
        let kept = Model::kept(checkpoint)?;
        if !self.built.is_of(&kept) {
            let (path, model) = (checkpoint.path().display(), self.built.model.name());
            let message = format!("{path} is a checkpoint of {}", kept.name());
            let error = anyhow!("{message}, the plan is for {model}");
            return Err(hinted(error, "give a plan for the same model"));
        }
        self.machine.restore(checkpoint)?;
        let progress = checkpoint.progress();
        let was_whole = !checkpoint.is_sharded() || progress.config[WHOLE] == true;
        let whole = was_whole && self.machine.exchanges_whole();
        let same_plan = match &self.built.file {
            None => !checkpoint.is_sharded(),
            Some(file) => KeptPlan::of(checkpoint)?.is_some_and(|kept| kept.file == file.text()),
        };
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
            let dropped = format!("{dropped}: what its codecs still owed is dropped");
            return Ok(owes.then_some(dropped));
        }
        let alike = progress.config[ORDER].as_str() == Some(&self.order()[..]);
        let read = |rank: usize| anyhow::Ok(checkpoint.exchange(Rank(rank as u32))?);
        let tensors = match whole {
            true => reshard(world, progress.world as usize, read)?,
            false => read(world.rank().index())?,
        };
        if same_plan {
            self.machine.restore_residuals(&tensors)?;
        }
        let state = State { tensors, plan: progress.plan.clone() };
        let sync = self.machine.sync_mut();
        // Where gradients leave in another order than they did, or by another plan or codec, what is owed is
        // taken up, and the plan of buckets is not.
        let loaded = match alike && same_plan && state.check(sync.options()).is_ok() {
            true => sync.load(&state),
            false => sync.load_tensors(&state),
        };
        loaded.map_err(hint_at_flags)?;
        Ok((!alike).then(|| REORDERED.to_owned()))
    }

    /// Waits for all that is on its way, and returns predictions and counts of all ranks; none
    /// without a plan.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn figures(&mut self, steps: u64, step_s: f64, busy_s: f64) -> Result<Option<Planned>> {
        self.machine.settle()?;
        let Some(file) = &self.built.file else { return Ok(None) };
        let memory_bytes = self.growth.bytes().unwrap_or(0);
        let measured = Measured { steps, step_s, busy_s, memory_bytes };
        plan::gather(&self.machine, file, &self.built.plan, &measured).map(Some)
    }
}

/// Options of the exchange of a rank's gradients.
fn exchange(
    job: &TrainingJob,
    codec: Option<&Policy>,
    seat: &Seat<'_>,
    built: &Built,
) -> ExchangeOptions {
    let sync = thinwire_sync::Options {
        seed: job.recipe.seed,
        timeout: job.settings.link.timeout(),
        local_ranks: Some(seat.place.local_world as usize),
        unchecked: job.settings.unchecked,
        ..job.exchange.options(codec, job.recipe.steps)
    };
    let codecs = if codec.is_some() { Codecs::OfPolicy } else { Codecs::OfPlan };
    let gradients = match job.recipe.grad_dtype {
        GradDtype::F32 => Gradients::F32,
        GradDtype::Bf16 => Gradients::MixedBf16,
    };
    ExchangeOptions { sync, codecs, gradients, remote: built.served.clone() }
}

/// Adds the flag to an error of an exchange that it would mend.
fn hint_at_flags(error: thinwire_sync::Error) -> anyhow::Error {
    match error {
        Invalid(ref detail) if detail.contains("--bucket-bytes") => {
            hinted(error, "give the same --bucket-bytes as before, or none as before")
        }
        Invalid(ref detail) if detail.contains("momentum correction") => {
            hinted(error, "give --momentum-correction FACTOR as before")
        }
        error => error.into(),
    }
}
