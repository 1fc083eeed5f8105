//! Any graph of crate `model` as a [`Model`]: its gradients are derived, and the executor's kernels
//! run both on one rank.
//!
//! What is run is the program of a plan for one rank. A parameter's gradient leaves as soon as its
//! last share is there; that of a table which the head shares, when backward ends. A batch of more
//! rows than the graph has is several micro-batches, and gradients leave during the last one.
//!
//! Laws: gradients are those of autodiff, and a training is that of the same graph under a plan.

mod run;
mod sample;
#[cfg(test)]
mod tests;

use thinwire_model::{Declaration, Graph, Part, TensorId, Training, backward};
use thinwire_program::{Instruction, Plan, Program, Slot, insert_frees, program};
use thinwire_wire::Rank;

use super::invalid;
use super::machine::Inputs;
use super::start;
use super::text::Text;
use super::value::Value;
use crate::error::Error;
use crate::{Batch, Initial, Model, Parameter, Sink};
use run::Run;

pub use sample::Sampled;

/// A graph that learns text.
#[derive(Debug)]
pub struct Derived {
    training: Training,
    declarations: Vec<Declaration>,
    text: Text,
    program: Program,
    /// Forward without a backward after it.
    forward: Vec<Instruction>,
    parameters: Vec<Parameter>,
    /// For every parameter of the program, which of these it is.
    places: Vec<usize>,
}

impl Derived {
    /// The model of a graph for some rows; perhaps the user says which input is the tokens.
    ///
    /// # Errors
    /// If the graph has no gradient by something that is to be trained, or is no model of text.
    pub fn new(graph: &Graph, tokens: Option<&str>) -> Result<Derived, Error> {
        let training = backward(graph).map_err(|error| invalid(error.to_string()))?;
        let untrained = graph.parameters().find(|(id, _)| training.gradients[*id].is_none());
        if let Some((_, tensor)) = untrained {
            let message = "the loss does not depend on it, expected it to";
            return Err(invalid(format!("{}: {message}", tensor.name)));
        }
        let program = program(&training, &Plan::alone(graph), Rank(0))?;
        let order = order(&program);
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, index)| places[*index] = place);
        let tensors = order.iter().map(|index| &graph.tensors[program.parameters[*index].tensor]);
        let parameters = tensors.map(|tensor| Parameter {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            initial: described(tensor.role),
        });
        Ok(Derived {
            text: Text::new(graph, tokens)?,
            declarations: training
                .graph
                .nodes
                .iter()
                .map(|n| training.graph.declaration(n))
                .collect(),
            forward: alone(&program, program.forward[0].clone(), &[]),
            parameters: parameters.collect(),
            places,
            program,
            training,
        })
    }

    /// Tokens of a sequence.
    pub fn context(&self) -> usize {
        self.text.sizes()[1]
    }

    /// The parameters as the program's lasting slots.
    fn homes(&self, values: &[Vec<f32>]) -> Vec<Option<Value>> {
        let mut slots = vec![None; self.program.slots.len()];
        for (parameter, place) in self.program.parameters.iter().zip(&self.places) {
            let shape = &self.parameters[*place].shape;
            slots[parameter.home] = Some(Value::new(shape, values[*place].clone()));
        }
        slots
    }

    /// The inputs of every micro-batch.
    fn micro_batches(&self, batch: &Batch) -> Vec<Inputs> {
        let (found, [rows, context]) = ([batch.rows().len(), batch.context()], self.text.sizes());
        assert!(
            found[0] > 0 && found[0].is_multiple_of(rows) && found[1] == context,
            "a batch of {found:?}, expected a multiple of {rows} rows of {context} bytes"
        );
        self.text.inputs(batch)
    }
}

impl Model for Derived {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn loss_and_gradients(
        &self,
        values: &[Vec<f32>],
        batch: &Batch,
        sink: &mut Sink<'_>,
    ) -> Result<f32, Error> {
        let (data, homes) = (self.micro_batches(batch), self.homes(values));
        let mut sums = Sums::new(self, data.len(), sink);
        let mut loss = 0.0;
        for (inputs, moment) in data.iter().zip(moment(batch)..) {
            let mut run = Run::new(self, inputs, homes.clone()).with_dropout(moment);
            loss += run.through(&self.program.forward[0], &mut nobody)?;
            run.through(&self.program.backward[0], &mut |at, share| sums.add(at, share))?;
        }
        Ok(loss / data.len() as f32)
    }

    fn loss(&self, values: &[Vec<f32>], batch: &Batch) -> f32 {
        let (data, homes) = (self.micro_batches(batch), self.homes(values));
        let loss = |inputs: &Inputs| {
            let mut run = Run::new(self, inputs, homes.clone());
            run.through(&self.forward, &mut nobody).expect("forward hands nothing over")
        };
        data.iter().map(loss).sum::<f32>() / data.len() as f32
    }

    fn initial(&self, seed: u64) -> Vec<Vec<f32>> {
        let start = start::initial(&self.training.graph, seed);
        let mut values = vec![Vec::new(); self.parameters.len()];
        for (parameter, place) in self.program.parameters.iter().zip(&self.places) {
            let shape = &self.parameters[*place].shape;
            let whole: Vec<Part> =
                shape.iter().map(|length| Part { start: 0, length: *length }).collect();
            values[*place] = start(parameter.tensor, &whole);
        }
        values
    }
}

/// Gradients, as far as their shares have come.
struct Sums<'a, 'b> {
    derived: &'a Derived,
    micro_batches: usize,
    sums: Vec<(usize, Option<Vec<f32>>)>,
    sink: &'a mut Sink<'b>,
}

impl<'a, 'b> Sums<'a, 'b> {
    fn new(derived: &'a Derived, micro_batches: usize, sink: &'a mut Sink<'b>) -> Sums<'a, 'b> {
        let sums = vec![(0, None); derived.parameters.len()];
        Sums { derived, micro_batches, sums, sink }
    }

    /// Adds a share; the last one completes the gradient.
    fn add(&mut self, index: usize, share: Value) -> Result<(), Error> {
        let (count, sum) = &mut self.sums[index];
        let share = share.into_floats();
        match sum {
            Some(sum) => sum.iter_mut().zip(share).for_each(|(sum, share)| *sum += share),
            None => *sum = Some(share),
        }
        *count += 1;
        if *count < self.derived.program.parameters[index].shares * self.micro_batches {
            return Ok(());
        }
        let mut gradient = sum.take().expect("its last share has just come");
        if self.micro_batches > 1 {
            let mean = 1.0 / self.micro_batches as f32;
            gradient.iter_mut().for_each(|value| *value *= mean);
        }
        (self.sink)(self.derived.places[index], &mut gradient)
    }
}

/// The parameters of a program in the order in which their gradients are complete.
fn order(program: &Program) -> Vec<usize> {
    let mut missing: Vec<usize> = program.parameters.iter().map(|p| p.shares).collect();
    let shares = program.backward[0].iter().filter_map(|instruction| match instruction {
        Instruction::Gradient { parameter, .. } => Some(*parameter),
        _ => None,
    });
    let complete = shares.filter(|parameter| {
        missing[*parameter] -= 1;
        missing[*parameter] == 0
    });
    complete.collect()
}

/// A part of forward by itself: what nobody in it reads any more is let go, but for some slots.
fn alone(program: &Program, list: Vec<Instruction>, lasting: &[Slot]) -> Vec<Instruction> {
    let kept = list.into_iter().filter(|it| !matches!(it, Instruction::Free { .. }));
    let homes = program.parameters.iter().map(|parameter| parameter.home);
    let lasting: Vec<Slot> = homes.chain(lasting.iter().copied()).collect();
    let mut phases = [((), kept.collect())];
    insert_frees(&mut phases, &lasting);
    let [((), list)] = phases;
    list
}

fn described(role: thinwire_model::Role) -> Initial {
    match role {
        thinwire_model::Role::Parameter(thinwire_model::Initial::Normal(deviation)) => {
            Initial::Normal(deviation as f32)
        }
        thinwire_model::Role::Parameter(thinwire_model::Initial::Ones) => Initial::Ones,
        _ => Initial::Zeros,
    }
}

/// The random numbers of a batch's first micro-batch: by its bytes alone, since a model is a function
/// of parameters and batch.
fn moment(batch: &Batch) -> u64 {
    let bytes: Vec<u8> = batch.rows().flatten().copied().collect();
    u64::from(thinwire_wire::checksum(&bytes)) << u32::BITS
}

/// Forward has no gradients.
fn nobody(parameter: TensorId, _: Value) -> Result<(), Error> {
    unreachable!("a gradient of parameter {parameter} in forward")
}
