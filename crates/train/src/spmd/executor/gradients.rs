//! Gradients of a rank: how they become sums over all ranks, once the rank has computed its own
//! contribution.
//!
//! Every gradient is sent in a bucket of crate `sync`, which provides codecs, feedback, skipped steps
//! and the plans of `auto`. There are two cases:
//!
//! - **Replicas**: every rank runs the plan of one rank on its own rows. Gradients are averaged over all
//!   ranks, in buckets of several parameters.
//! - **A plan for all ranks**: a gradient is summed along one dimension of the mesh, whole or in shards.
//!   Gradients that use the plan's own codecs have a bucket each; those that use the codec of a policy share
//!   buckets with others of the same ranks. Earlier sums along other dimensions, and sums in every
//!   micro-batch, are transfers of the program like those of activations.
//!
//! Law: replicas of a parameter are equal bit for bit after every step.

use std::sync::Arc;
use std::time::Instant;

use thinwire_codec::Choice;
use thinwire_model::{Collective, Placement};
use thinwire_policy::Sketch;
use thinwire_program::{
    Convert, Encoding, Instruction, Parameter as Planned, Program, Rearrange, summation,
};
use thinwire_schedule::Algorithm;
use thinwire_sync::{
    Channel, Feedback, Outcome, Parameter, Policy, Reduction, StepRecord, Synchronizer, Target,
    Tensors, Transport, WARM_UP_STEPS_MAX,
};
use thinwire_wire::{Rank, World};

use super::late::{Averages, Late};
use crate::adam::{Sending, Travel};
use crate::error::Error;
use crate::spmd::invalid;
use crate::{Adam, Gradients};

/// Options of the exchange of a rank's gradients.
#[derive(Clone, Debug, Default)]
pub struct ExchangeOptions {
    /// Options of the synchroniser of gradients; the executor sets its reduction.
    pub sync: thinwire_sync::Options,
    /// Source of the choice of codecs.
    pub codecs: Codecs,
    /// The precision to which gradients are rounded before they are sent.
    pub gradients: Gradients,
    /// Names of the parameters of a replica whose gradients are not exchanged: they stay on their rank
    /// until its [`Remote`](super::Remote) takes them.
    pub remote: Vec<String>,
    /// Whether the gradients of a replica are not exchanged, so that its own optimiser applies them.
    pub is_local: bool,
    /// Whether each replica sketches its gradients in the steps in which a sketch is due, for
    /// [`Executor::notes`](super::Executor::notes).
    pub sketches: bool,
    /// Number of steps by which replicas apply their gradients later than they compute them. The gradients
    /// are under way meanwhile.
    pub delay: u64,
    /// Form of Adam, which determines whether ranks exchange gradients or momenta.
    pub adam: Adam,
}

/// Source of the choice of gradients' codecs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codecs {
    /// The plan chooses a codec for each gradient.
    #[default]
    OfPlan,
    /// The policy of the synchroniser chooses codecs.
    OfPolicy,
}

/// State of a replica's exchange between two executors.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// The synchroniser.
    pub sync: Synchronizer,
    /// Gradients under way.
    pub late: Option<Late>,
}

/// The exchange of a rank's gradients.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub sync: Synchronizer,
    /// For every parameter of the program, its index among the synchroniser's parameters; `None` if the
    /// parameter's gradients stay on this rank.
    places: Vec<Option<usize>>,
    /// For every parameter of the program, its gradient if the gradient stays on this rank.
    kept: Vec<Vec<f32>>,
    /// Whether this rank's optimiser applies the gradients that stay on this rank.
    is_local: bool,
    /// For every parameter of the program, whether its gradient is rounded before it leaves.
    rounded: Vec<bool>,
    /// For every parameter of the program, the rearrangements that bring its gradient into the order of
    /// its shards.
    before: Vec<Vec<Rearrange>>,
    /// For every parameter of the program, whether the synchroniser makes the last sum of its gradient.
    ends: Vec<bool>,
    /// Whether this rank is one of several with the whole model, each of which draws its own dropouts.
    pub is_replica: bool,
    /// Whether all ranks of the job exchange every gradient whole, so that they keep the same state for the
    /// next step as replicas do.
    pub is_whole: bool,
    /// Form of Adam.
    pub adam: Adam,
    /// Whether the variance determines the end of the warm-up.
    settles: bool,
    /// The values that are handed over in this step.
    pub sending: Sending,
    /// Gradients under way, if they are applied later.
    late: Option<Late>,
    /// Time at which the step began.
    begun: Instant,
    /// Exchange of the gradients of 0/1 Adam, which are sent raw.
    raw: Option<Synchronizer>,
    /// Bytes passed to the links so far, including headers, and the bytes that were predicted.
    pub sent_bytes: u64,
    pub predicted_bytes: u64,
    /// Whether gradients are sketched in the steps in which a sketch is due.
    sketches: bool,
    /// Sketch of the gradients of this step, if one is due.
    sketch: Option<Sketch>,
    /// Seconds of handing over gradients in this step, and of waiting after the last gradient.
    pub handover_s: f64,
    pub exposed_wait_s: f64,
}

impl Exchange {
    /// Starts the exchange of a program's gradients; `named` has the names and whole shapes of the
    /// parameters. All ranks of the plan call this. A replica may continue with a synchroniser that was
    /// re-formed over the channel.
    ///
    /// # Errors
    /// If ranks disagree, or a policy's codec cannot carry gradients of this plan.
    pub fn start(
        program: &mut Program,
        named: &[crate::Parameter],
        channel: &Channel,
        options: ExchangeOptions,
        earlier: Option<Earlier>,
    ) -> Result<Exchange, Error> {
        let is_replica = program.is_alone();
        check_adam(&options, program)?;
        if options.delay > 0 && !is_replica {
            return Err(invalid(format!(
                "gradients cannot be delayed by {} steps under a plan",
                options.delay
            )));
        }
        if options.codecs == Codecs::OfPolicy && !is_replica {
            check_policy(program, &options.sync.policy)?;
            program
                .parameters
                .iter_mut()
                .for_each(|parameter| parameter.transport = thinwire_program::Transport::raw());
        }
        let mut order = completion_order(program);
        let count = order.len();
        let is_local = (options.is_local || options.delay > 0) && is_replica;
        let whole_order = order.clone();
        let stays =
            |index: usize| is_local || is_replica && options.remote.contains(&named[index].name);
        order.retain(|index| !stays(*index));
        let mut places = vec![None; count];
        order.iter().enumerate().for_each(|(place, index)| places[*index] = Some(place));
        let rounds = options.gradients == Gradients::MixedBf16;
        let of_parameter = |index: &usize| match is_replica {
            true => Parameter::new(&named[*index].name, &named[*index].shape),
            false => planned(program, *index, &named[*index].name, options.codecs),
        };
        let parameters: Vec<Parameter> = order.iter().map(&of_parameter).collect();
        let everybody = channel.world().size();
        let stage = program.mesh.ranks().len();
        let is_shared = |parameter: &Parameter, index: &usize| {
            let whole = parameter.target == Target::Whole && parameter.shape == named[*index].shape;
            let ranks = if parameter.ranks.is_empty() { stage } else { parameter.ranks.len() };
            whole && ranks == everybody
        };
        let mut shared = parameters.iter().zip(&order);
        let is_whole = is_replica || shared.all(|(parameter, index)| is_shared(parameter, index));
        let before = (0..count).map(|index| match program.exchanged(index) {
            Some(convert) if !is_replica => program.transfer(convert).before,
            _ => Vec::new(),
        });
        let before = before.collect();
        let ends = (0..count).map(|index| program.exchanged(index).is_some()).collect();
        let (channel, reduction) = match is_replica {
            true => (channel.clone(), Reduction::Mean),
            false => {
                let stage = channel.among(&program.mesh.ranks()).expect("a rank is on its stage");
                (stage.bulk(), Reduction::Sum)
            }
        };
        // Without a number of steps the warm-up goes on until the variance has settled.
        let settles = options.adam == Adam::OneBit && options.sync.warm_up_steps == 0;
        let warm_up_steps = if settles { WARM_UP_STEPS_MAX } else { options.sync.warm_up_steps };
        let options_of_sync = thinwire_sync::Options { reduction, warm_up_steps, ..options.sync };
        let (earlier, late) = match earlier {
            Some(Earlier { sync, late }) => (Some(sync), late),
            None => (None, None),
        };
        let late = match (late, options.delay) {
            (None, steps) if steps > 0 => {
                let parameters: Vec<_> = whole_order.iter().map(of_parameter).collect();
                let channel = channel.clone().bulk();
                Some(Late::start(&channel, &parameters, whole_order, steps, &options_of_sync)?)
            }
            (late, _) => late,
        };
        let raw = match options.adam {
            Adam::ZeroOne => {
                let policy = Policy::Fixed(Choice::Bytes(thinwire_codec::raw()));
                let feedback = Feedback::default();
                let options =
                    thinwire_sync::Options { policy, feedback, ..options_of_sync.clone() };
                Some(Synchronizer::over(channel.clone(), parameters.clone(), options)?)
            }
            Adam::AdamW | Adam::OneBit => None,
        };
        let sync = match earlier {
            None => Synchronizer::over(channel, parameters, options_of_sync),
            Some(sync) => Ok(sync),
        };
        Ok(Exchange {
            sync: sync?,
            places,
            kept: vec![Vec::new(); count],
            is_local,
            rounded: named.iter().map(|parameter| rounds && parameter.is_matrix()).collect(),
            before,
            ends,
            is_replica,
            is_whole,
            adam: options.adam,
            settles,
            sending: Sending::default(),
            raw,
            late,
            begun: Instant::now(),
            sent_bytes: 0,
            predicted_bytes: 0,
            sketches: options.sketches && is_replica,
            sketch: None,
            handover_s: 0.0,
            exposed_wait_s: 0.0,
        })
    }

    /// Returns the sums of a parameter's gradient that are made before it is handed over.
    pub fn earlier<'p>(&self, index: usize, parameter: &'p Planned) -> &'p [Convert] {
        &parameter.reduce[..parameter.reduce.len() - usize::from(self.ends[index])]
    }

    /// Begins a step in which `sending` is handed over.
    pub fn begin(&mut self, step: u64, sending: Sending) -> Result<(), Error> {
        let started = Instant::now();
        (self.handover_s, self.exposed_wait_s) = (0.0, 0.0);
        self.sketch = (self.sketches && Sketch::is_due(step)).then(|| Sketch::new(step));
        self.begun = started;
        self.sending = sending;
        self.kept.iter_mut().for_each(Vec::clear);
        if let Some(sync) = self.sync_of_step() {
            sync.begin(step)?;
            self.predicted_bytes += self.sync_of_step().map_or(0, Synchronizer::step_bytes);
        }
        Ok(())
    }

    /// Returns the synchroniser for this step; `None` if ranks exchange nothing in it.
    fn sync_of_step(&mut self) -> Option<&mut Synchronizer> {
        match self.sending.travel {
            Travel::Nothing => None,
            Travel::Gradients => Some(self.raw.as_mut().unwrap_or(&mut self.sync)),
            Travel::Momenta => Some(&mut self.sync),
        }
    }

    /// Returns the synchroniser that has the averages of this step.
    fn averages(&self) -> &Synchronizer {
        match self.sending.travel {
            Travel::Gradients => self.raw.as_ref().unwrap_or(&self.sync),
            Travel::Momenta | Travel::Nothing => &self.sync,
        }
    }

    /// Returns the index of a parameter of the program among those of the synchroniser; `None` if its
    /// gradient stays on this rank in this step.
    fn place(&self, index: usize) -> Option<usize> {
        self.places[index].filter(|_| self.sending.travel != Travel::Nothing)
    }

    /// Returns the record of the exchange for this step.
    pub fn record(&self) -> StepRecord {
        if let Some(late) = &self.late {
            return late.record.clone();
        }
        match self.sending.travel {
            Travel::Nothing => StepRecord::default(),
            _ => self.averages().record().clone(),
        }
    }

    /// Returns whether the averages of this step have arrived, or none are expected.
    pub fn has_averages(&self) -> bool {
        self.sending.travel == Travel::Nothing || self.averages().has_averages()
    }

    /// Sets this rank's part of the global batch, if parts are unequal.
    pub fn set_share(&mut self, share: Option<f32>) -> Result<(), Error> {
        if let Some(late) = &mut self.late {
            late.set_share(share)?;
        }
        for sync in std::iter::once(&mut self.sync).chain(&mut self.raw) {
            match share {
                Some(share) => sync.set_share(share).map_err(Error::exchange)?,
                None => sync.set_equal_shares(),
            }
        }
        Ok(())
    }

    /// Averages the momenta of all ranks between two steps, before step `next`, in the same way as gradients
    /// of 0/1 Adam.
    pub fn average_momenta(
        &mut self,
        next: u64,
        momentum: impl Fn(usize) -> Vec<f32>,
    ) -> Result<Outcome, Error> {
        self.sending.travel = Travel::Gradients;
        let raw = self.raw.as_mut().expect("ranks take steps on their own under 0/1 Adam alone");
        // In the last step no gradients have travelled, so that its number is free; momenta may have, and been skipped.
        raw.begin(next - 1)?;
        self.predicted_bytes += raw.step_bytes();
        for (index, place) in self.places.iter().enumerate() {
            if let Some(place) = place {
                raw.ready(*place, &momentum(index)[..])?;
            }
        }
        let outcome = raw.finish()?;
        self.sent_bytes += raw.record().total(|bucket| bucket.sent_bytes);
        Ok(outcome)
    }

    /// Hands over the gradient of a parameter, summed over this rank's part of `micro_batches`
    /// micro-batches. It divides the gradient by the number of micro-batches, and sends the mean after
    /// `turn` has rearranged it.
    pub fn ready(
        &mut self,
        index: usize,
        mut gradient: Vec<f32>,
        micro_batches: usize,
        turn: impl FnOnce(&mut [f32], Sending),
    ) -> Result<(), Error> {
        let started = Instant::now();
        if micro_batches > 1 {
            let mean = 1.0 / micro_batches as f32;
            gradient.iter_mut().for_each(|value| *value *= mean);
        }
        if self.rounded[index] {
            gradient.iter_mut().for_each(|value| *value = round_bf16(*value));
        }
        if let Some(sketch) = &mut self.sketch {
            sketch.add(index, &gradient);
        }
        turn(&mut gradient, self.sending);
        let gradient = self.before[index].iter().fold(gradient, |values, one| one.apply(values));
        match self.place(index) {
            Some(place) => {
                let sync = self.sync_of_step().expect("something travels to this place");
                sync.ready(place, &gradient[..])?;
            }
            None => self.kept[index] = gradient,
        }
        self.handover_s += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Returns whether the variance after this step may end the warm-up, or may be fixed.
    pub fn may_settle(&self) -> bool {
        self.sending.travel == Travel::Gradients && (self.settles || self.raw.is_some())
    }

    /// Returns the row of the sketch of this step's gradients; empty if there is no sketch.
    pub fn sketch(&self) -> impl Iterator<Item = f32> {
        self.sketch.iter().flat_map(Sketch::row)
    }

    /// Waits for all gradients. Returns the outcome of the step, as far as this rank's gradients determine
    /// it.
    pub fn wait(&mut self) -> Result<Outcome, Error> {
        let started = Instant::now();
        let outcome = match self.sync_of_step() {
            Some(sync) => sync.wait()?,
            None => Outcome::Averaged,
        };
        let outcome = match self.late.take() {
            Some(mut late) => {
                let due = late.exchange(&self.kept, self.begun)?;
                self.late = Some(late);
                due.map_or(outcome, |due| self.take_late(due))
            }
            None => outcome,
        };
        self.exposed_wait_s = started.elapsed().as_secs_f64();
        // What is applied later is looked at by its own exchange.
        let finite = self.is_pending() || self.kept.iter().flatten().all(|value| value.is_finite());
        Ok(if finite { outcome } else { Outcome::Skipped })
    }

    /// Replaces this rank's gradients by averages that are due.
    fn take_late(&mut self, averages: Averages) -> Outcome {
        let outcome = averages.outcome;
        if let Some(late) = &mut self.late {
            let sent_bytes = late.put(averages, &mut self.kept);
            self.sent_bytes += sent_bytes;
            self.predicted_bytes += sent_bytes;
        }
        outcome
    }

    /// Waits for gradients under way, at the end of the steps; returns `None` if there are none left.
    pub fn end_late(&mut self) -> Result<Option<Outcome>, Error> {
        let Some(late) = &mut self.late else { return Ok(None) };
        let due = late.end()?;
        Ok(due.map(|due| self.take_late(due)))
    }

    /// Returns whether gradients of this step are applied later, and no earlier ones are applied now.
    pub fn is_pending(&self) -> bool {
        self.late.as_ref().is_some_and(|late| late.is_pending)
    }

    /// Returns the residuals of delayed gradients.
    pub fn late_tensors(&self) -> Tensors {
        self.late.as_ref().map_or_else(Tensors::new, Late::tensors)
    }

    /// Continues with the residuals of delayed gradients, before a step.
    pub fn load_late(&mut self, tensors: &Tensors, step: u64) -> Result<(), Error> {
        match &mut self.late {
            Some(late) => late.load(tensors, step),
            None => Ok(()),
        }
    }

    /// Returns the state with which another executor continues.
    pub fn into_earlier(self) -> Earlier {
        Earlier { sync: self.sync, late: self.late }
    }

    /// Applies the step, or leaves everything as it was before.
    pub fn commit(&mut self, outcome: Outcome) -> Result<(), Error> {
        if let Some(sync) = self.sync_of_step() {
            sync.commit(outcome)?;
            let sent_bytes = sync.record().total(|bucket| bucket.sent_bytes);
            self.sent_bytes += sent_bytes;
        }
        Ok(())
    }

    /// Returns the reduced gradient of a parameter of the program: its mean or its sum, or this rank's shard
    /// of it if the plan shards it. If the gradient stays on this rank, it is this rank's own.
    pub fn gradient(&self, index: usize) -> &[f32] {
        match self.place(index) {
            Some(place) => self.averages().gradient(place),
            None => &self.kept[index],
        }
    }

    /// Returns the gradients that this rank's optimiser applies: those that were exchanged, in the order
    /// of the exchange, or those that stayed on this rank.
    pub fn gradients(&self) -> impl Iterator<Item = &[f32]> {
        let is_kept = self.is_local || self.sending.travel == Travel::Nothing;
        let places = if is_kept { 0 } else { self.sync.parameters().len() };
        let left = (0..places).map(|place| self.averages().gradient(place));
        let stayed = self.kept.iter().filter(move |_| is_kept).map(Vec::as_slice);
        left.chain(stayed)
    }

    /// Returns the gradients that stay on this rank for other processes.
    pub fn kept(&self) -> impl Iterator<Item = &[f32]> {
        self.remote().map(|index| &self.kept[index][..])
    }

    /// Returns the parameters whose gradients stay on this rank for other processes, by their number in the
    /// program.
    pub fn remote(&self) -> impl Iterator<Item = usize> {
        (0..self.places.len()).filter(|index| self.is_remote(*index))
    }

    /// Returns whether the gradient of a parameter of the program stays on this rank for other processes.
    pub fn is_remote(&self, index: usize) -> bool {
        self.places[index].is_none() && !self.is_local
    }
}

/// Refuses a form of Adam if momenta of some gradients could not be exchanged.
fn check_adam(options: &ExchangeOptions, program: &Program) -> Result<(), Error> {
    let why = match options {
        ExchangeOptions { adam: Adam::AdamW, .. } => return Ok(()),
        _ if !program.is_alone() => "with a plan",
        ExchangeOptions { is_local: true, .. } => "in a mode that exchanges parameters",
        ExchangeOptions { delay, .. } if *delay > 0 => "in a mode that delays gradients",
        ExchangeOptions { remote, .. } if !remote.is_empty() => "with parameters on servers",
        ExchangeOptions { sync, .. } if sync.momentum.is_some() => "with momentum correction",
        ExchangeOptions { sync, .. } if matches!(sync.policy, Policy::Auto(_)) => "with codec auto",
        _ => return Ok(()),
    };
    Err(invalid(format!("optimizer {} cannot be used {why}, expected adamw", options.adam)))
}

/// Refuses a policy for a plan that sums some gradients in every micro-batch, since these use the plan's
/// codecs or travel raw.
fn check_policy(program: &Program, policy: &Policy) -> Result<(), Error> {
    let lists = program.backward.iter().chain(&program.weight).flatten();
    let sums = |instruction: &Instruction| match instruction {
        Instruction::Convert(convert) => {
            convert.gradient.is_some() && program.mesh.sizes[convert.step.mesh_dim] > 1
        }
        _ => false,
    };
    match lists.into_iter().any(sums) && policy.to_string() != "none" {
        true => Err(invalid(format!(
            "codec {policy} cannot be used with a plan that sums sharded gradients in every \
             micro-batch, expected a plan that sums them once in a step"
        ))
        .with_hint("leave --codec out, or plan with --zero 1")),
        false => Ok(()),
    }
}

/// Returns a parameter of a plan's program in the form that its synchroniser takes.
fn planned(program: &Program, index: usize, name: &str, codecs: Codecs) -> Parameter {
    let parameter = &program.parameters[index];
    let Some(convert) = program.exchanged(index) else {
        // Nobody else has a share of it.
        let shape = &program.slots[parameter.reduced].shape;
        let me = program.mesh.on_stage(program.mesh.stage);
        let codec = Choice::Bytes(thinwire_codec::raw());
        let transport = Transport { codec, summation: Algorithm::Ring.into(), partitions: 1 };
        return Parameter {
            ranks: Arc::new([me]),
            transport: Some(transport),
            ..Parameter::new(name, shape)
        };
    };
    let mut shape = program.slots[convert.from].shape.clone();
    let ranks: Vec<Rank> = program.mesh.group(convert.step.mesh_dim);
    let target = match convert.step.collective {
        Collective::ReduceScatter { dim, .. } => {
            // Shards lie one after the other.
            let outer: usize = shape[..dim].iter().product();
            if outer > 1 {
                let inner = shape[dim..].iter().product::<usize>() / ranks.len();
                shape = vec![outer * ranks.len(), inner];
            }
            Target::Shard
        }
        _ => Target::Whole,
    };
    let Encoding { codec, inner, .. } = program.encoding(convert);
    let world = World::new(0, ranks.len() as u32).expect("a group has a first rank");
    let elements = shape.iter().product();
    let summation = summation(codec.exchange(), world, inner, elements);
    let partitions = summation.partitions(elements);
    let codec = Choice::Bytes(codec);
    let transport =
        (codecs == Codecs::OfPlan).then_some(Transport { codec, summation, partitions });
    // A codec's blocks must not join what all ranks of a dimension have with what each has of its own.
    let replicated = program.slots[convert.to].layout.0.iter().enumerate();
    let kind = replicated.fold(0, |kind, (dim, placement)| {
        kind | u32::from(*placement == Placement::Replicated) << dim
    });
    // All ranks of the stage are those of the synchroniser, which may exchange in units then.
    let all = ranks.len() == program.mesh.sizes.iter().product::<usize>();
    let ranks = if all { Arc::default() } else { ranks.into() };
    Parameter { ranks, kind, target, transport, ..Parameter::new(name, &shape) }
}

/// Returns the parameters of a program in the order in which their gradients are complete.
pub(in crate::spmd) fn completion_order(program: &Program) -> Vec<usize> {
    let mut missing: Vec<usize> = program.parameters.iter().map(|p| p.shares).collect();
    let passes = program.backward.iter().rev().chain(program.weight.iter().rev());
    let shares = passes.flatten().filter_map(|instruction| match instruction {
        Instruction::Gradient { parameter, .. } => Some(*parameter),
        _ => None,
    });
    let complete = shares.filter(|parameter| {
        missing[*parameter] -= 1;
        missing[*parameter] == 0
    });
    complete.collect()
}

/// Rounds to bf16, to nearest, ties to even.
fn round_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    if value.is_finite() { f32::from_bits(rounded) } else { value }
}
#[cfg(test)]
mod tests {
    use super::round_bf16;

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let unit = 2_f32.powi(-7);
        let cases = [(1.0 + unit * 0.5, 1.0), (1.0 + unit * 1.5, 1.0 + unit * 2.0)];
        for (value, expected) in cases {
            assert_eq!(round_bf16(value), expected);
            assert_eq!(round_bf16(-value), -expected);
        }
        assert!(round_bf16(f32::NAN).is_nan());
        assert_eq!(round_bf16(f32::INFINITY), f32::INFINITY);
    }
}
