//! The machine: one rank at work on its program.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use thinwire_codec::Codec;
use thinwire_collective::Group;
use thinwire_model::{Array, Declaration, Layout, Part, Placement, Region, TensorId, Training};
use thinwire_wire::Rank;

use super::assignment::Assignment;
use super::derive::program;
use super::kernel;
use super::mesh::Mesh;
use super::optimizer::Optimizer;
use super::order::{Pass, Turn};
use super::plan::Plan;
use super::program::{Instruction, Owner, Parameter, Program, Slot};
use super::slots::{Content, Slots};
use super::start::Start;
use super::value::Value;
use crate::error::Error;
use crate::{AdamWOptions, Pace, clip_scale, global_norm};

/// The inputs of one micro-batch, all of each.
pub type Inputs = HashMap<TensorId, Array>;

/// One rank.
#[derive(Debug)]
pub struct Machine<'a> {
    pub(super) training: &'a Training,
    pub(super) program: Program,
    declarations: Vec<Declaration>,
    /// For every node, this rank's part of its axes.
    parts: Vec<Vec<Part>>,
    pub(super) slots: Slots,
    sums: Vec<Sum>,
    pub(super) optimizer: Optimizer,
    seed: u64,
    pub(super) step: u64,
    loss: Option<f32>,
    elements_max: usize,
    optimizer_s: f64,
    gradient_norm_max: Option<f32>,
    gradient_norm: f64,
    raw: Arc<dyn Codec>,
}

/// The sum of a parameter's gradient, as far as it is.
#[derive(Debug, Default)]
struct Sum {
    shares: usize,
    total: Option<Vec<f32>>,
    reduced: Option<Content>,
}

impl<'a> Machine<'a> {
    /// A rank of a plan, whose parameters start as `initial` says.
    ///
    /// # Errors
    /// If the plan is not one of this graph, or not one for so many ranks.
    pub fn new(
        training: &'a Training,
        plan: &Plan,
        group: Group,
        initial: Start<'_>,
    ) -> Result<Machine<'a>, Error> {
        let program = program(training, plan, group.world().rank())?;
        let assignment = Assignment::new(training, plan);
        let parts = parts(&assignment, &program.mesh);
        let mut slots = Slots::new(group);
        let device = slots.device().clone();
        let local = |parameter: &Parameter, slot: Slot| {
            let shape = &training.graph.tensors[parameter.tensor].shape;
            let parts = parts_of(shape, &program.slots[slot].layout, &program.mesh);
            let lengths: Vec<usize> = parts.iter().map(|part| part.length).collect();
            Value::new(&lengths, initial(parameter.tensor, &parts), &device)
        };
        for parameter in &program.parameters {
            slots.put_lasting(parameter.home, Content::Here(local(parameter, parameter.home)));
        }
        let owned = |parameter: &Parameter| match parameter.owner {
            Owner::Here { .. } => Some(local(parameter, parameter.reduced)),
            Owner::There { .. } => None,
        };
        let optimizer = Optimizer::new(&training.graph, &program, owned);
        Ok(Machine {
            training,
            sums: program.parameters.iter().map(|_| Sum::default()).collect(),
            declarations: assignment.declarations,
            program,
            parts,
            slots,
            optimizer,
            seed: 0,
            step: 0,
            loss: None,
            elements_max: 0,
            optimizer_s: 0.0,
            gradient_norm_max: None,
            gradient_norm: 0.0,
            raw: thinwire_codec::raw(),
        })
    }

    /// Clips the gradient of all parameters together to this norm. All ranks tell each other their
    /// part of it, once a step; a step whose gradient is not finite is left out, clipped or not.
    #[must_use]
    pub fn with_gradient_norm_max(self, gradient_norm_max: Option<f32>) -> Machine<'a> {
        Machine { gradient_norm_max, ..self }
    }

    /// The norm of the last step's gradient before it was clipped.
    pub fn gradient_norm(&self) -> f64 {
        self.gradient_norm
    }

    /// What this rank does.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes handed to the links so far, headers included; of [`Machine::gather`], nothing.
    pub fn sent_bytes(&self) -> u64 {
        self.slots.sent_bytes()
    }

    /// Seconds so far in which this rank has waited for what others sent.
    pub fn waited_s(&self) -> f64 {
        self.slots.waited_s()
    }

    /// Seconds that the optimiser took in the last step.
    pub fn optimizer_s(&self) -> f64 {
        self.optimizer_s
    }

    /// The numbers of all ranks, in their order.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        self.slots.gather(mine)
    }

    /// The most elements that micro-batches have held at the end of a turn.
    pub fn elements_max(&self) -> usize {
        self.elements_max
    }

    /// One step on as many micro-batches as the plan has. The mean loss, on the ranks of the stage
    /// that computes it.
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
        let order = self.program.order.clone();
        for (at, turn) in order.iter().enumerate() {
            // What the next turn awaits may come while this one computes.
            order.get(at + 1).into_iter().for_each(|next| self.await_messages(*next));
            self.turn(*turn, &data[turn.micro_batch])?;
            self.elements_max = self.elements_max.max(self.slots.elements(&self.program));
        }
        self.update(pace, options)?;
        self.step += 1;
        let count = self.program.micro_batches as f32;
        Ok(self.loss.map(|sum| sum / count))
    }

    /// Waits for all that is on its way to and from this rank.
    ///
    /// # Errors
    /// If a peer is lost or disagrees.
    pub fn settle(&mut self) -> Result<(), Error> {
        for parameter in &self.program.parameters {
            self.slots.value(&self.program, 0, parameter.home)?;
        }
        self.slots.flush()
    }

    /// This rank's part of every parameter that it updates, with where it begins.
    pub fn parameters(&self) -> Vec<(TensorId, Vec<usize>, Array)> {
        let owned = self.program.parameters.iter().zip(self.optimizer.values());
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

    fn turn(&mut self, turn: Turn, data: &Inputs) -> Result<(), Error> {
        let list = std::mem::take(self.list(turn));
        let done = list.iter().try_for_each(|it| self.execute(it, turn.micro_batch, data));
        *self.list(turn) = list;
        done
    }

    fn list(&mut self, turn: Turn) -> &mut Vec<Instruction> {
        match turn.pass {
            Pass::Forward => &mut self.program.forward[turn.chunk],
            Pass::Backward => &mut self.program.backward[turn.chunk],
            Pass::Weight => &mut self.program.weight[turn.chunk],
        }
    }

    fn execute(
        &mut self,
        instruction: &Instruction,
        micro_batch: usize,
        data: &Inputs,
    ) -> Result<(), Error> {
        let moment = self.moment(micro_batch);
        match instruction {
            Instruction::Load { to } => {
                let held = &self.program.slots[*to];
                let part = cut(&data[&held.tensor], &held.layout, &self.program.mesh);
                let value = Value::from_array(&part, self.slots.device());
                self.slots.put(micro_batch, *to, Content::Here(value));
            }
            Instruction::Compute { node, inputs, outputs } => {
                self.compute(micro_batch, *node, (inputs, outputs))?;
            }
            Instruction::Convert(convert) => {
                let value = self.value(micro_batch, convert.from)?;
                let content =
                    self.slots.convert(&self.program, (convert, &self.raw), &value, moment);
                self.slots.put(micro_batch, convert.to, content);
            }
            Instruction::Send { slot, to, number } => {
                let value = self.value(micro_batch, *slot)?;
                self.slots.send(value.floats(), (*to, *number), moment);
            }
            Instruction::Recv { slot, from, number } => {
                self.recv(micro_batch, *slot, (*from, *number));
            }
            Instruction::Gradient { parameter, slot } => {
                let value = self.value(micro_batch, *slot)?;
                self.share(*parameter, &value)?;
            }
            Instruction::Loss { slot } => {
                let loss = self.value(micro_batch, *slot)?.floats()[0];
                *self.loss.get_or_insert(0.0) += loss;
            }
            Instruction::Free { slot } => self.slots.free(micro_batch, *slot),
        }
        Ok(())
    }

    /// Begins to receive all messages of a turn.
    fn await_messages(&mut self, turn: Turn) {
        let list = std::mem::take(self.list(turn));
        for instruction in &list {
            if let Instruction::Recv { slot, from, number } = instruction {
                self.recv(turn.micro_batch, *slot, (*from, *number));
            }
        }
        *self.list(turn) = list;
    }

    /// Begins to receive a message, unless that has begun.
    fn recv(&mut self, micro_batch: usize, slot: Slot, message: (Rank, u32)) {
        if !self.slots.is_filled(micro_batch, slot) {
            let elements = self.program.slots[slot].shape.iter().product();
            let content = self.slots.recv(elements, message, self.moment(micro_batch));
            self.slots.put(micro_batch, slot, content);
        }
    }

    fn compute(
        &mut self,
        micro_batch: usize,
        node: usize,
        (inputs, outputs): (&[Slot], &[Slot]),
    ) -> Result<(), Error> {
        let values = inputs.iter().map(|slot| self.value(micro_batch, *slot));
        let values = values.collect::<Result<Vec<_>, Error>>()?;
        let region = Region::new(&self.declarations[node], self.parts[node].clone())
            .with_random(self.seed, self.moment(micro_batch));
        let operator = &self.training.graph.nodes[node].operator;
        let values: Vec<&Value> = values.iter().collect();
        let results = kernel::compute(operator, &values, &region, self.slots.device());
        for (slot, value) in outputs.iter().zip(results) {
            self.slots.put(micro_batch, *slot, Content::Here(value));
        }
        Ok(())
    }

    /// A number for a micro-batch of this step that no other one has.
    fn moment(&self, micro_batch: usize) -> u64 {
        self.step * self.program.micro_batches as u64 + micro_batch as u64
    }

    fn value(&mut self, micro_batch: usize, slot: Slot) -> Result<Value, Error> {
        self.slots.value(&self.program, micro_batch, slot)
    }

    /// Adds a share of a gradient; the last one of a step starts its reduction.
    fn share(&mut self, index: usize, value: &Value) -> Result<(), Error> {
        let (sum, share) = (&mut self.sums[index], value.floats());
        match &mut sum.total {
            Some(total) => total.iter_mut().zip(&share).for_each(|(a, b)| *a += b),
            None => sum.total = Some(share),
        }
        sum.shares += 1;
        let parameter = &self.program.parameters[index];
        if sum.shares < parameter.shares * self.program.micro_batches {
            return Ok(());
        }
        let total = std::mem::take(sum).total.expect("the last share has just come");
        let shape = &self.program.slots[parameter.sum].shape;
        let content = Content::Here(Value::new(shape, total, self.slots.device()));
        let moment = self.moment(0);
        let reduced = self.slots.chain(
            &self.program,
            (&parameter.reduce, &parameter.codec),
            content,
            moment,
        )?;
        self.sums[index].reduced = Some(reduced);
        Ok(())
    }

    /// Brings all sums to their owners, lets the optimiser work, and brings the values home.
    fn update(&mut self, pace: Pace, options: &AdamWOptions) -> Result<(), Error> {
        let (moment, slots, program) = (self.moment(0), &mut self.slots, &self.program);
        let sums = std::mem::take(&mut self.sums).into_iter().zip(&program.parameters);
        let gradients =
            sums.map(|(sum, parameter)| whole_gradient(slots, program, (sum, parameter), moment));
        let gradients = gradients.collect::<Result<Vec<_>, Error>>()?;
        self.sums = gradients.iter().map(|_| Sum::default()).collect();
        let mean = pace.gradient_scale / self.program.micro_batches as f32;
        let started = Instant::now();
        if let Some(clip) = self.clip(&gradients, mean)? {
            let pace = Pace { gradient_scale: mean * clip, ..pace };
            self.optimizer.update(&gradients, pace, options);
        }
        self.optimizer_s = started.elapsed().as_secs_f64();
        let (slots, program) = (&mut self.slots, &self.program);
        for (parameter, values) in program.parameters.iter().zip(self.optimizer.values()) {
            let home = bring_home(slots, program, (parameter, values), moment)?;
            slots.put_lasting(parameter.home, home);
        }
        Ok(())
    }

    /// What gradients, which count `scale` times, are multiplied by so that the norm of all is small
    /// enough; none if it is no number.
    fn clip(&mut self, gradients: &[Vec<f32>], scale: f32) -> Result<Option<f32>, Error> {
        let program = &self.program;
        let share = |(parameter, gradient): (&Parameter, &Vec<f32>)| {
            let replicas = replicas(&program.slots[parameter.reduced].layout, &program.mesh);
            global_norm(std::iter::once(&gradient[..])).powi(2) / replicas as f64
        };
        let mine: f64 = program.parameters.iter().zip(gradients).map(share).sum();
        let all = self.slots.gather(&[mine as f32])?;
        let sum: f64 = all.iter().map(|share| f64::from(*share)).sum();
        self.gradient_norm = sum.sqrt() * f64::from(scale);
        let finite = self.gradient_norm.is_finite();
        Ok(finite.then(|| clip_scale(self.gradient_norm, self.gradient_norm_max)))
    }
}

/// On how many ranks of a mesh the same part of a tensor lies.
fn replicas(layout: &Layout, mesh: &Mesh) -> usize {
    let placements = layout.0.iter().zip(&mesh.sizes);
    let replicated = placements.filter(|(placement, _)| **placement == Placement::Replicated);
    replicated.map(|(_, size)| size).product()
}

/// The whole gradient of a parameter, if this rank updates it.
fn whole_gradient(
    slots: &mut Slots,
    program: &Program,
    (sum, parameter): (Sum, &Parameter),
    moment: u64,
) -> Result<Vec<f32>, Error> {
    let shape = &program.slots[parameter.reduced].shape;
    let reduced = sum.reduced.expect("all shares have come");
    let mut total = slots.arrived(reduced, shape)?.floats();
    if let Owner::There { rank, sum, .. } = parameter.owner {
        slots.send(total, (rank, sum), moment);
        return Ok(Vec::new());
    }
    let raw = thinwire_codec::raw();
    for other in &parameter.others {
        let elements = program.slots[other.slot].shape.iter().product();
        let content = slots.recv(elements, (other.peer, other.number), moment);
        let content = slots.chain(program, (&other.converts, &raw), content, moment)?;
        let sum = slots.arrived(content, shape)?.floats();
        total.iter_mut().zip(sum).for_each(|(a, b)| *a += b);
    }
    Ok(total)
}

/// Brings new values of a parameter to where they are used; what comes to this rank's home.
fn bring_home(
    slots: &mut Slots,
    program: &Program,
    (parameter, values): (&Parameter, &[f32]),
    moment: u64,
) -> Result<Content, Error> {
    let (restore, copies) = match &parameter.owner {
        Owner::Here { restore, copies } => (restore, copies),
        Owner::There { rank, values, .. } => {
            let elements = program.slots[parameter.home].shape.iter().product();
            return Ok(slots.recv(elements, (*rank, *values), moment));
        }
    };
    let shape = &program.slots[parameter.reduced].shape;
    let value = Value::new(shape, values.to_vec(), slots.device());
    let raw = thinwire_codec::raw();
    for copy in copies {
        let content = Content::Here(value.clone());
        let content = slots.chain(program, (&copy.converts, &raw), content, moment)?;
        let values = slots.arrived(content, &program.slots[copy.slot].shape)?.floats();
        slots.send(values, (copy.peer, copy.number), moment);
    }
    slots.chain(program, (restore, &raw), Content::Here(value), moment)
}

/// For every node, a rank's part of its axes.
fn parts(assignment: &Assignment<'_>, mesh: &Mesh) -> Vec<Vec<Part>> {
    let part = |(declaration, strategy): (&Declaration, _)| {
        declaration.region(strategy, &mesh.sizes, &mesh.coordinates).parts().to_vec()
    };
    assignment.declarations.iter().zip(&assignment.strategies).map(part).collect()
}

/// A rank's part of a tensor.
fn cut(whole: &Array, layout: &Layout, mesh: &Mesh) -> Array {
    whole.slice(&parts_of(whole.shape(), layout, mesh))
}

/// A rank's part of every dimension of a tensor.
pub(super) fn parts_of(shape: &[usize], layout: &Layout, mesh: &Mesh) -> Vec<Part> {
    let start = layout.start(shape, &mesh.sizes, &mesh.coordinates);
    let local = layout.local_shape(shape, &mesh.sizes);
    start.into_iter().zip(local).map(|(start, length)| Part { start, length }).collect()
}
