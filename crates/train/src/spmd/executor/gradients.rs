//! Gradients of a rank: from the last share that it computes to the sum over all ranks with a share.
//!
//! Every gradient leaves as a bucket of crate `sync`, with its codecs, feedback, skipping and plans of
//! `auto`, in one of two ways:
//!
//! - **Replicas**: every rank runs the plan of one rank on its own rows. Gradients are averaged over all
//!   ranks, in buckets of several parameters.
//! - **A plan for all ranks**: a gradient is summed along one dimension of the mesh, whole or in shards.
//!   Gradients that leave by the plan's own codecs have a bucket each; those that leave by the codec of a
//!   policy share buckets with others of their ranks. Sums along other dimensions before, and sums
//!   in every micro-batch, are transfers of the program like those of activations.
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
use thinwire_sync::{Channel, Outcome, Parameter, Reduction, Synchronizer, Target, Transport};
use thinwire_wire::{Rank, World};

use crate::Gradients;
use crate::error::Error;
use crate::spmd::invalid;

/// The options of a rank's gradients.
#[derive(Clone, Debug, Default)]
pub struct ExchangeOptions {
    /// The options of their synchroniser; the executor sets its reduction.
    pub sync: thinwire_sync::Options,
    /// Who decides on codecs.
    pub codecs: Codecs,
    /// The precision that gradients are rounded to before they leave.
    pub gradients: Gradients,
    /// Names of the parameters of a replica whose gradients stay with their rank, until its
    /// [`Remote`](super::Remote) takes them.
    pub remote: Vec<String>,
    /// Whether the gradients of a replica stay with their rank, whose own optimiser applies them.
    pub is_local: bool,
    /// Whether each replica sketches its gradients in the steps in which a sketch is due, for [`Executor::notes`](super::Executor::notes).
    pub sketches: bool,
}

/// Who decides on the codecs of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codecs {
    /// The plan, gradient by gradient.
    #[default]
    OfPlan,
    /// The policy of the synchroniser.
    OfPolicy,
}

/// A rank's gradients on their way.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub sync: Synchronizer,
    /// For every parameter of the program, its place among the synchroniser's; none of those whose gradients
    /// stay here.
    places: Vec<Option<usize>>,
    /// For every parameter of the program, its gradient if that stays here.
    kept: Vec<Vec<f32>>,
    /// Whether this rank's optimiser applies the gradients that stay here.
    is_local: bool,
    /// For every parameter of the program, whether its gradient is rounded before it leaves.
    rounded: Vec<bool>,
    /// For every parameter of the program, how its gradient is brought into the order of its shards.
    before: Vec<Vec<Rearrange>>,
    /// For every parameter of the program, whether the last of its sums is the synchroniser's.
    ends: Vec<bool>,
    /// Whether this rank is one of several with the whole model, each of which draws its own dropouts.
    pub is_replica: bool,
    /// Whether every gradient is exchanged whole by all ranks of the job, so that the state for the next
    /// step is that of replicas.
    pub is_whole: bool,
    /// Bytes handed to the links so far, headers included, and those that were expected.
    pub sent_bytes: u64,
    pub predicted_bytes: u64,
    /// Whether gradients are sketched in the steps in which a sketch is due.
    sketches: bool,
    /// Sketch of the gradients of this step, if one is made.
    sketch: Option<Sketch>,
    /// Seconds of handing gradients over in this step, and of waiting after the last one.
    pub handover_s: f64,
    pub exposed_wait_s: f64,
}

impl Exchange {
    /// Starts the exchange of a program's gradients; `named` are the parameters as they are called, with
    /// their whole shapes. All ranks of the plan call this. A replica may continue with a synchroniser that was
    /// re-formed over the channel.
    ///
    /// # Errors
    /// If ranks disagree, or a policy's codec cannot carry gradients of this plan.
    pub fn start(
        program: &mut Program,
        named: &[crate::Parameter],
        channel: &Channel,
        options: ExchangeOptions,
        earlier: Option<Synchronizer>,
    ) -> Result<Exchange, Error> {
        let is_replica = program.is_alone();
        if options.codecs == Codecs::OfPolicy && !is_replica {
            check_policy(program, &options.sync.policy)?;
            program
                .parameters
                .iter_mut()
                .for_each(|parameter| parameter.transport = thinwire_program::Transport::raw());
        }
        let mut order = completion_order(program);
        let count = order.len();
        let is_local = options.is_local && is_replica;
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
        let parameters: Vec<Parameter> = order.iter().map(of_parameter).collect();
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
        let options_of_sync = thinwire_sync::Options { reduction, ..options.sync };
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

    /// Begins a step.
    pub fn begin(&mut self, step: u64) -> Result<(), Error> {
        (self.handover_s, self.exposed_wait_s) = (0.0, 0.0);
        self.sketch = (self.sketches && Sketch::is_due(step)).then(|| Sketch::new(step));
        self.sync.begin(step)?;
        self.predicted_bytes += self.sync.step_bytes();
        Ok(())
    }

    /// Hands over the gradient of a parameter, summed over this rank's part of so many micro-batches; their
    /// mean leaves.
    pub fn ready(
        &mut self,
        index: usize,
        mut gradient: Vec<f32>,
        micro_batches: usize,
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
        let gradient = self.before[index].iter().fold(gradient, |values, one| one.apply(values));
        match self.places[index] {
            Some(place) => self.sync.ready(place, &gradient[..])?,
            None => self.kept[index] = gradient,
        }
        self.handover_s += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Returns the row of the sketch of this step's gradients; none if none is made.
    pub fn sketch(&self) -> impl Iterator<Item = f32> {
        self.sketch.iter().flat_map(Sketch::row)
    }

    /// Waits for all gradients; returns what is to become of the step by those that this rank has part in.
    pub fn wait(&mut self) -> Result<Outcome, Error> {
        let started = Instant::now();
        let outcome = self.sync.wait()?;
        self.exposed_wait_s = started.elapsed().as_secs_f64();
        let finite = self.kept.iter().flatten().all(|value| value.is_finite());
        Ok(if finite { outcome } else { Outcome::Skipped })
    }

    /// Keeps the step, or leaves everything as it was before.
    pub fn commit(&mut self, outcome: Outcome) -> Result<(), Error> {
        self.sync.commit(outcome)?;
        self.sent_bytes += self.sync.record().total(|bucket| bucket.sent_bytes);
        Ok(())
    }

    /// Returns the reduced gradient of a parameter of the program: its mean or its sum, this rank's shard
    /// of it where the plan shards it. One that stays here is this rank's own.
    pub fn gradient(&self, index: usize) -> &[f32] {
        match self.places[index] {
            Some(place) => self.sync.gradient(place),
            None => &self.kept[index],
        }
    }

    /// Returns the gradients that this rank's optimiser applies: those that left, in the order in which they did, or
    /// those that stay here.
    pub fn gradients(&self) -> impl Iterator<Item = &[f32]> {
        let left = (0..self.sync.parameters().len()).map(|place| self.sync.gradient(place));
        let stayed = self.kept.iter().filter(|_| self.is_local).map(Vec::as_slice);
        left.chain(stayed)
    }

    /// Returns the gradients that stay here for others.
    pub fn kept(&self) -> impl Iterator<Item = &[f32]> {
        self.remote().map(|index| &self.kept[index][..])
    }

    /// Returns the parameters whose gradients stay here for others, by their number in the program.
    pub fn remote(&self) -> impl Iterator<Item = usize> {
        (0..self.places.len()).filter(|index| self.is_remote(*index))
    }

    /// Whether the gradient of a parameter of the program stays here for others.
    pub fn is_remote(&self, index: usize) -> bool {
        self.places[index].is_none() && !self.is_local
    }
}

/// Refuses a policy for a plan that sums some gradients in every micro-batch, where they leave by the
/// plan's codecs or as they are.
fn check_policy(program: &Program, policy: &thinwire_sync::Policy) -> Result<(), Error> {
    let lists = program.backward.iter().chain(&program.weight).flatten();
    let sums = |instruction: &Instruction| match instruction {
        Instruction::Convert(convert) => {
            convert.gradient.is_some() && program.mesh.sizes[convert.step.mesh_dim] > 1
        }
        _ => false,
    };
    match lists.into_iter().any(sums) && policy.to_string() != "none" {
        true => Err(invalid(format!(
            "codec {policy} with a plan that sums sharded gradients in every micro-batch, expected one \
             whose gradients are summed once a step"
        ))
        .with_hint("leave --codec out, or plan with --zero 1")),
        false => Ok(()),
    }
}

/// Returns a parameter of a plan's program as its synchroniser takes it.
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
