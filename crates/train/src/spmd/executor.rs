//! The executor: one rank that runs its program.

mod gradients;
mod late;
mod pass;
mod times;
mod update;

use std::collections::BTreeMap;
use std::time::Instant;

use thinwire_collective::Group;
use thinwire_model::{Array, Declaration, Part, TensorId, Training};
use thinwire_program::{Assignment, Mesh, Owner, Parameter, Plan, Program, Slot, derive, parts_of};
use thinwire_sync::{Channel, StepRecord, Synchronizer};
use thinwire_wire::{Rank, World};

use super::invalid;
use super::optimizer::Optimizer;
use super::slots::{Content, Slots};
use super::start::Start;
use super::text::Inputs;
use super::value::Value;
use crate::checkpoint::Tensors;
use crate::error::Error;
use crate::{AdamWOptions, Pace};
pub(super) use gradients::Earlier;
use gradients::Exchange;
pub(super) use late::Late;
use times::Watch;
use update::Sum;

pub(super) use gradients::completion_order;
pub use gradients::{Codecs, ExchangeOptions};
pub use times::{Times, Went};
pub use update::{Handover, Remote};

/// Values that are equal on all ranks after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreed {
    /// The mean loss over the batch.
    pub loss: f64,
    /// The highest number that any rank has sent by [`Executor::say`].
    pub said: f32,
}

/// One rank that runs its program.
#[derive(Debug)]
pub struct Executor<'a> {
    pub(super) training: &'a Training,
    pub(super) program: Program,
    declarations: Vec<Declaration>,
    /// For every node, this rank's part of the node's axes. If parts of the batch have unequal work, it
    /// has one entry for every part whose work the rank may do.
    parts: Vec<Vec<Vec<Part>>>,
    pub(super) slots: Slots,
    sums: Vec<Sum>,
    /// The parameters whose gradients are complete on this rank, and are not being reduced yet.
    complete: Vec<usize>,
    pub(super) optimizer: Optimizer,
    /// Optimiser of other processes, which replaces this rank's own.
    remote: Option<Remote<'a>>,
    exchange: Exchange,
    /// Whether gradients are computed and then dropped.
    muted: bool,
    seed: u64,
    pub(super) step: u64,
    /// The step with which this rank began.
    pub(super) first: u64,
    loss: Option<f32>,
    evaluating: bool,
    /// Micro-batches evaluated so far.
    evaluations: u64,
    elements_max: usize,
    optimizer_s: f64,
    gradient_norm_max: Option<f32>,
    gradient_norm: f64,
    said: f32,
    notes: Vec<f32>,
    agreed: Agreed,
    /// The notes of all ranks in the last step.
    all_notes: Vec<f32>,
    times: Times,
    /// Pace and options of the last step, with which delayed gradients are applied early.
    last: Option<Last>,
    /// This replica's part of the global batch, if parts are unequal.
    share: Option<f32>,
}

/// Settings of the optimiser in a step.
#[derive(Clone, Copy, Debug)]
struct Last {
    pace: Pace,
    options: AdamWOptions,
}

impl<'a> Executor<'a> {
    /// Returns a rank of a plan. Its parameters start as `initial` says. If the plan is for one rank, every
    /// rank of the group follows it: they are replicas, whose gradients are averaged.
    ///
    /// # Errors
    /// If the plan is not for this graph or this number of ranks, or if ranks disagree.
    pub fn new(
        training: &'a Training,
        plan: &Plan,
        group: Group,
        initial: Start<'_>,
        options: ExchangeOptions,
    ) -> Result<Executor<'a>, Error> {
        Executor::over(training, plan, Channel::new(group), initial, options)
    }

    /// Returns a rank of a plan among the ranks of a channel, as [`Executor::new`] does.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn over(
        training: &'a Training,
        plan: &Plan,
        channel: Channel,
        initial: Start<'_>,
        options: ExchangeOptions,
    ) -> Result<Executor<'a>, Error> {
        Executor::build(training, plan, channel, initial, options, None)
    }

    /// Returns a rank of a plan, possibly with a synchroniser that was re-formed over the channel.
    pub(super) fn build(
        training: &'a Training,
        plan: &Plan,
        channel: Channel,
        initial: Start<'_>,
        options: ExchangeOptions,
        earlier: Option<Earlier>,
    ) -> Result<Executor<'a>, Error> {
        plan.check(training)?;
        let world = channel.world();
        let (rank, seed) = match plan.ranks() {
            // Replicas drop out different elements.
            1 => (Rank(0), u64::from(world.rank().0)),
            ranks if ranks == world.size() => (world.rank(), 0),
            ranks => {
                return Err(invalid(format!(
                    "{} ranks, expected {ranks} by the plan",
                    world.size()
                )));
            }
        };
        let assignment = Assignment::new(training, plan);
        let mut program = derive(&assignment, rank)?;
        let parts = program.mesh.first_dim().map(|mesh| parts(&assignment, &mesh)).collect();
        let named = |parameter: &Parameter| {
            let tensor = &training.graph.tensors[parameter.tensor];
            crate::Parameter { name: tensor.name.clone(), shape: tensor.shape.clone() }
        };
        let named: Vec<crate::Parameter> = program.parameters.iter().map(named).collect();
        let exchange = Exchange::start(&mut program, &named, &channel, options, earlier)?;
        let mut slots = Slots::new(channel);
        let local = |parameter: &Parameter, slot: Slot| {
            let shape = &training.graph.tensors[parameter.tensor].shape;
            let parts = parts_of(shape, &program.slots[slot].layout, &program.mesh);
            let lengths: Vec<usize> = parts.iter().map(|part| part.length).collect();
            Value::new(&lengths, initial(parameter.tensor, &parts))
        };
        for parameter in &program.parameters {
            slots.put_lasting(parameter.home, Content::Here(local(parameter, parameter.home)));
        }
        let owned = |parameter: &Parameter| match parameter.owner {
            Owner::Here { .. } => Some(local(parameter, parameter.reduced)),
            Owner::There { .. } => None,
        };
        let optimizer = Optimizer::new(&training.graph, &program, owned);
        Ok(Executor {
            training,
            sums: program.parameters.iter().map(|_| Sum::default()).collect(),
            complete: Vec::new(),
            declarations: assignment.declarations,
            program,
            parts,
            slots,
            optimizer,
            remote: None,
            exchange,
            muted: false,
            seed,
            step: 0,
            first: 0,
            loss: None,
            evaluating: false,
            evaluations: 0,
            elements_max: 0,
            optimizer_s: 0.0,
            gradient_norm_max: None,
            gradient_norm: 0.0,
            said: 0.0,
            notes: Vec::new(),
            agreed: Agreed::default(),
            all_notes: Vec::new(),
            times: Times::default(),
            last: None,
            share: None,
        })
    }

    /// Sets this replica's part of the global batch, from 0 to 1, if parts are unequal: the averages of
    /// gradients and losses are weighted by it.
    ///
    /// # Errors
    /// If it is not a valid part.
    pub fn set_share(&mut self, share: Option<f32>) -> Result<(), Error> {
        self.share = share;
        self.exchange.set_share(share)
    }

    /// Returns the states of the optimiser and of the exchange.
    pub(super) fn into_parts(self) -> (Optimizer, Earlier) {
        (self.optimizer, self.exchange.into_earlier())
    }

    /// Clips the gradient of all parameters together to this norm. All ranks exchange their parts of the norm
    /// once per step. A step whose gradient is not finite is skipped, with or without clipping.
    #[must_use]
    pub fn with_gradient_norm_max(self, gradient_norm_max: Option<f32>) -> Executor<'a> {
        Executor { gradient_norm_max, ..self }
    }

    /// Lets other processes update the parameters of [`ExchangeOptions::remote`], from this rank's
    /// gradients. These processes determine the learning rate and have the moments. `values` are the
    /// parameters' values for the first step, in the order of the program.
    ///
    /// # Errors
    /// If a parameter and its values differ in length.
    pub fn with_remote(
        mut self,
        remote: Remote<'a>,
        values: Vec<Vec<f32>>,
    ) -> Result<Executor<'a>, Error> {
        let places: Vec<usize> = self.exchange.remote().collect();
        let lengths = |all: &[Vec<f32>]| all.iter().map(Vec::len).collect::<Vec<_>>();
        let held = places.iter().map(|index| self.optimizer.values[*index].len());
        let (found, expected) = (lengths(&values), held.collect::<Vec<_>>());
        if found != expected {
            return Err(invalid(format!(
                "remote values of lengths {found:?}, expected {expected:?}"
            )));
        }
        for (index, values) in places.into_iter().zip(values) {
            let shape = self.optimizer.parameter(index).shape.clone();
            let home = self.program.parameters[index].home;
            self.slots.put_lasting(home, Content::Here(Value::new(&shape, values.clone())));
            self.optimizer.values[index] = values;
        }
        self.remote = Some(remote);
        Ok(self)
    }

    /// Returns whether all ranks exchange every gradient whole, as replicas do. If so, any other such
    /// training can continue from [`Executor::exchange_state`], with any number of ranks.
    pub fn exchanges_whole(&self) -> bool {
        self.exchange.is_whole
    }

    /// Returns the world of all ranks with which this rank exchanges anything. With pipeline stages, the
    /// world of its synchroniser is smaller.
    pub fn world(&self) -> World {
        self.slots.exchanges.world()
    }

    /// Returns the synchroniser of this rank's gradients.
    pub fn sync(&self) -> &Synchronizer {
        &self.exchange.sync
    }

    /// Returns the times of the last step's exchange.
    pub fn record(&self) -> StepRecord {
        self.exchange.record()
    }

    /// Returns the residuals of delayed gradients.
    pub(super) fn exchange_tensors(&self) -> Tensors {
        self.exchange.late_tensors()
    }

    /// Continues with the residuals of delayed gradients, before the next step.
    pub(super) fn load_exchange(&mut self, tensors: &Tensors) -> Result<(), Error> {
        self.exchange.load_late(tensors, self.step)
    }

    /// Returns the synchroniser, so that it can continue from a state.
    pub fn sync_mut(&mut self) -> &mut Synchronizer {
        &mut self.exchange.sync
    }

    /// Returns the parameters of a replica in the form that a synchroniser takes, in the order of the
    /// program.
    pub fn replicated(&self) -> Vec<thinwire_sync::Parameter> {
        let one = |parameter: &Parameter| {
            let tensor = &self.training.graph.tensors[parameter.tensor];
            thinwire_sync::Parameter::new(&tensor.name, &tensor.shape)
        };
        self.program.parameters.iter().map(one).collect()
    }

    /// Returns the values of the parameters that this rank updates, in the order of the program.
    pub fn values(&self) -> &Vec<Vec<f32>> {
        &self.optimizer.values
    }

    /// Returns the values of the parameters of a replica, to be changed in place, in the order of the
    /// program. The next step uses them after [`Executor::use_values`].
    pub fn values_mut(&mut self) -> &mut Vec<Vec<f32>> {
        &mut self.optimizer.values
    }

    /// Makes the next steps use changed values of a replica.
    pub fn use_values(&mut self) {
        for (index, parameter) in self.program.parameters.iter().enumerate() {
            let values = self.optimizer.shown(index).into_owned();
            let value = Value::new(&self.program.slots[parameter.home].shape, values);
            self.slots.put_lasting(parameter.home, Content::Here(value));
        }
    }

    /// Gives this replica its own dropouts; `number` must differ from those of other replicas.
    #[must_use]
    pub fn drawing_as(self, number: u64) -> Executor<'a> {
        Executor { seed: number, ..self }
    }

    /// Returns two times of the last step in seconds: handing over gradients, and waiting for them after
    /// the backward pass.
    pub fn exchange_s(&self) -> [f64; 2] {
        [self.exchange.handover_s, self.exchange.exposed_wait_s]
    }

    /// Returns the number of the next step.
    pub fn next_step(&self) -> u64 {
        self.step
    }

    /// Continues at a step, before this rank's first step; other ranks have taken the steps before it.
    pub fn seek(&mut self, step: u64) {
        (self.step, self.first) = (step, step);
    }

    /// Returns the norm of the last step's gradient before it was clipped.
    pub fn gradient_norm(&self) -> f64 {
        self.gradient_norm
    }

    /// Sends a number to all other ranks with every step from now on.
    pub fn say(&mut self, number: f32) {
        self.said = number;
    }

    /// Sends numbers to all other ranks with every step from now on. All ranks must send the same number of
    /// them.
    pub fn note(&mut self, notes: &[f32]) {
        notes.clone_into(&mut self.notes);
    }

    /// Returns the notes of all ranks in the last step, in the order of ranks. If the exchange has
    /// [`ExchangeOptions::sketches`] and a sketch was due, a rank's notes end with the sketch of its
    /// gradients.
    pub fn notes(&self) -> impl Iterator<Item = &[f32]> {
        self.all_notes.chunks(self.all_notes.len().div_ceil(self.world().size()).max(1))
    }

    /// Returns the values that all ranks exchanged in the last step. Ranks exchange them before
    /// parameters change. An exchange after that would have to wait until all new parameters have
    /// arrived, which otherwise overlaps with the next forward pass.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// Returns the program of this rank.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the bytes passed to the links so far. They include headers, but not the bytes of
    /// [`Executor::gather`].
    pub fn sent_bytes(&self) -> u64 {
        self.slots.exchanges.sent_bytes() + self.exchange.sent_bytes
    }

    /// Returns the bytes that all steps so far should have passed to the links, according to the program
    /// and to the codecs of gradients.
    pub fn predicted_bytes(&self) -> u64 {
        (self.step - self.first) * self.program.other_bytes() + self.exchange.predicted_bytes
    }

    /// Returns the seconds so far in which this rank has waited for data of others.
    pub fn waited_s(&self) -> f64 {
        self.slots.waited_s.get()
    }

    /// Returns the seconds that the optimiser took in the last step.
    pub fn optimizer_s(&self) -> f64 {
        self.optimizer_s
    }

    /// Gathers the numbers of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        self.slots.gather(mine)
    }

    /// Gathers the bytes of all ranks, in the order of ranks. No exchange may be under way: see
    /// [`Executor::settle`].
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.slots.exchanges.gather_bytes(mine)
    }

    /// Returns the times of this rank's passes in the last step.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// Returns the largest number of elements that micro-batches have held at the end of a pass.
    pub fn elements_max(&self) -> usize {
        self.elements_max
    }

    /// Takes one step on as many micro-batches as the plan has. Returns the mean loss over the batch on the
    /// ranks that compute a loss, and `None` on the others.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn step(
        &mut self,
        data: &[Inputs],
        pace: Pace,
        options: &AdamWOptions,
    ) -> Result<Option<f32>, Error> {
        self.loss = None;
        self.slots.flush()?;
        self.last = Some(Last { pace, options: *options });
        let sending = self.sending(pace, options)?;
        self.exchange.begin(self.step, sending)?;
        // What the last step's messages met after its end, their receivers have told then.
        self.slots.exchanges.take_finite();
        let (order, mut watch) = (self.program.order.clone(), Watch::start());
        for (at, pass) in order.iter().enumerate() {
            // What the next pass awaits may come while this one computes.
            order.get(at + 1).into_iter().for_each(|next| self.await_messages(*next));
            let source = self.program.source(pass.micro_batch).0;
            let (begun, waited_s) = (Instant::now(), self.slots.waited_s.get());
            self.pass(*pass, &data[source])?;
            watch.pass(*pass, begun, self.slots.waited_s.get() - waited_s);
            self.elements_max = self.elements_max.max(self.slots.elements(&self.program));
        }
        self.update(pace, options, &mut watch)?;
        self.times = watch.end();
        Ok(self.loss.map(|_| self.agreed.loss as f32))
    }

    /// Computes the gradients of micro-batches and drops them, to measure the time of a step without
    /// exchange.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn compute_gradients(&mut self, data: &[Inputs]) -> Result<(), Error> {
        self.muted = true;
        let order = self.program.order.clone();
        let done = order.iter().try_for_each(|pass| self.pass(*pass, &data[pass.micro_batch]));
        self.muted = false;
        done
    }

    /// Returns whether this rank knows a loss, and the loss, scaled so that its mean over all ranks is
    /// the mean over the batch.
    fn told_loss(&self) -> [f32; 2] {
        let weight = self.share.map_or(1.0, |share| share * self.sync().world().size() as f32);
        self.loss.map_or([0.0; 2], |loss| [1.0, loss * weight])
    }

    /// Returns the mean loss over this many micro-batches, from the losses that ranks know. If parts of
    /// the batch have unequal work, each rank knows its own share of the sum.
    fn mean_loss(&self, known: &[Option<f32>], micro_batches: usize) -> f64 {
        let sums = known.iter().flatten().map(|sum| f64::from(*sum));
        let (sum, ranks) = sums.fold((0.0, 0.0), |(sum, ranks), one| (sum + one, ranks + 1.0));
        let replicas = match self.program.sources.is_empty() {
            true => ranks,
            false => self.program.mesh.sizes[1..].iter().product::<usize>() as f64,
        };
        sum / replicas / micro_batches as f64
    }

    /// Waits for all exchanges of this rank. Ranks that have taken local steps under 0/1 Adam average their
    /// momenta, and delayed gradients are applied.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.end_early()?;
        for parameter in &self.program.parameters {
            self.slots.value(&self.program, 0, parameter.home)?;
        }
        self.slots.flush()
    }

    /// Returns every parameter by its name; `None` if this rank has only a part of some parameter. Waits
    /// for parameters that are still under way.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn whole(&mut self) -> Result<Option<BTreeMap<String, Vec<f32>>>, Error> {
        let graph = &self.training.graph;
        let mut all = BTreeMap::new();
        for parameter in &self.program.parameters {
            let tensor = &graph.tensors[parameter.tensor];
            let value = self.slots.value(&self.program, 0, parameter.home)?;
            if value.shape() == tensor.shape {
                all.insert(tensor.name.clone(), value.into_floats());
            }
        }
        Ok((all.len() == graph.parameters().count()).then_some(all))
    }

    /// Returns this rank's part of every parameter that it updates, and the position at which the part
    /// begins.
    pub fn parameters(&self) -> Vec<(TensorId, Vec<usize>, Array)> {
        let owned = self.program.parameters.iter().zip(&self.optimizer.values);
        let owned = owned.filter(|(parameter, _)| matches!(parameter.owner, Owner::Here { .. }));
        let part = |(parameter, values): (&Parameter, &Vec<f32>)| {
            let held = &self.program.slots[parameter.reduced];
            let shape = &self.training.graph.tensors[parameter.tensor].shape;
            let mesh = &self.program.mesh;
            let start = held.layout.start(shape, &mesh.sizes, &mesh.coordinates);
            let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            (parameter.tensor, start, Array::new(&held.shape[..], values))
        };
        owned.map(part).collect()
    }
}

/// Returns the loss that a rank has sent, if it knows one.
fn known_loss([known, loss]: [f32; 2]) -> Option<f32> {
    (known > 0.0).then_some(loss)
}

/// Returns, for every node, a rank's part of its axes.
fn parts(assignment: &Assignment<'_>, mesh: &Mesh) -> Vec<Vec<Part>> {
    let part = |(declaration, strategy): (&Declaration, _)| {
        declaration.region(strategy, &mesh.sizes, &mesh.coordinates).parts().to_vec()
    };
    assignment.declarations.iter().zip(&assignment.strategies).map(part).collect()
}
