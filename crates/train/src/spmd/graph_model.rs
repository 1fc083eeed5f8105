//! Model of text or images: a graph of crate `model` with its gradients. One rank trains it, and writes
//! text or classifies images with it.
//!
//! Laws: gradients equal PyTorch's, and a training equals a training of the same graph under a plan.

mod logits;
mod sample;
#[cfg(test)]
mod tests;

use thinwire_model::{Declaration, Graph, Training, backward};
use thinwire_program::pipeline::Schedule;
use thinwire_program::{Instruction, Plan, Program, Slot, insert_frees, program};
use thinwire_wire::Rank;

use super::executor::completion_order;
use super::invalid;
use super::modality::Modality;
use super::text::Inputs;
use super::value::Value;
use crate::error::Error;
use crate::{Batch, Parameter};

use logits::Logits;
pub use sample::Sampled;

/// Graph that learns from text or images.
#[derive(Debug)]
pub struct GraphModel {
    training: Training,
    declarations: Vec<Declaration>,
    modality: Modality,
    /// Plan of one rank for one micro-batch.
    plan: Plan,
    program: Program,
    parameters: Vec<Parameter>,
    /// For every parameter of the program, its index in `parameters`.
    places: Vec<usize>,
}

impl GraphModel {
    /// Returns the model of a graph for some rows. `tokens` is the name of the input with the tokens, if
    /// the user gives one.
    ///
    /// # Errors
    /// If the graph has no gradient with respect to something that can be trained, or is a model of neither
    /// text nor images.
    pub fn new(graph: &Graph, tokens: Option<&str>) -> Result<GraphModel, Error> {
        let training = backward(graph).map_err(|error| invalid(error.to_string()))?;
        let untrained = graph.parameters().find(|(id, _)| training.gradients[*id].is_none());
        if let Some((_, tensor)) = untrained {
            let message = "the loss does not depend on it, expected only parameters on which the \
                loss depends";
            return Err(invalid(format!("{}: {message}", tensor.name)));
        }
        let plan = Plan::alone(graph);
        let program = program(&training, &plan, Rank(0))?;
        let order = completion_order(&program);
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, index)| places[*index] = place);
        let tensors = order.iter().map(|index| &graph.tensors[program.parameters[*index].tensor]);
        let parameters = tensors
            .map(|tensor| Parameter { name: tensor.name.clone(), shape: tensor.shape.clone() });
        Ok(GraphModel {
            modality: Modality::new(graph, tokens)?,
            declarations: training
                .graph
                .nodes
                .iter()
                .map(|n| training.graph.declaration(n))
                .collect(),
            parameters: parameters.collect(),
            places,
            plan,
            program,
            training,
        })
    }

    /// Returns the number of rows of a micro-batch.
    pub fn rows(&self) -> usize {
        self.modality.sizes()[0]
    }

    /// Returns text or images, with the way in which the model reads them.
    pub fn modality(&self) -> &Modality {
        &self.modality
    }

    /// Returns the number of tokens of a sequence; 1 for an image.
    pub fn context(&self) -> usize {
        self.modality.sizes()[1]
    }

    /// Returns the parameters in the order in which their gradients are complete: the last layer comes first.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the graph with its gradients.
    pub fn training(&self) -> &Training {
        &self.training
    }

    /// Returns the plan of one rank for steps of this many micro-batches, each of which runs forward and
    /// backward before the next.
    pub fn plan(&self, micro_batches: usize) -> Plan {
        let orders = Schedule::OneForwardOneBackward.orders(1, micro_batches);
        let orders = orders.expect("one stage has any number of micro-batches");
        Plan { micro_batches, orders, ..self.plan.clone() }
    }

    /// Returns the parameters as the contents of the program's lasting slots.
    fn homes(&self, values: &[Vec<f32>]) -> Vec<Option<Value>> {
        let mut slots = vec![None; self.program.slots.len()];
        for (parameter, place) in self.program.parameters.iter().zip(&self.places) {
            let shape = &self.parameters[*place].shape;
            slots[parameter.home] = Some(Value::new(shape, values[*place].clone()));
        }
        slots
    }

    /// Returns the inputs of every micro-batch.
    ///
    /// # Panics
    /// If the batch is not a whole number of micro-batches, or has rows of another length or another
    /// modality.
    pub fn micro_batches(&self, batch: &Batch) -> Vec<Inputs> {
        let [rows, context] = self.modality.sizes();
        let length = match batch {
            Batch::Text(windows) => windows.context(),
            Batch::Images(_) => 1,
        };
        let found = [batch.rows(), length];
        assert!(
            found[0] > 0 && found[0].is_multiple_of(rows) && found[1] == context,
            "a batch of {found:?}, expected a multiple of {rows} rows of {context} bytes"
        );
        self.modality.inputs(batch)
    }

    /// Returns the number of rows of a batch whose class the model predicts correctly.
    ///
    /// Batch norm takes the statistics of each micro-batch, as in training.
    ///
    /// # Panics
    /// As [`GraphModel::micro_batches`]; or if the batch is text.
    pub fn count_right(&self, values: &[Vec<f32>], batch: &Batch) -> usize {
        let Batch::Images(images) = batch else { panic!("text, expected images") };
        let logits = Logits::new(self, values);
        let likeliest = |row: &[f32]| {
            let better = |best: usize, next: usize| if row[next] > row[best] { next } else { best };
            (0..row.len()).fold(0, better)
        };
        let found = self.micro_batches(batch).into_iter().flat_map(|inputs| {
            let values = logits.of(&inputs);
            let classes = values.rows()[1].max(1);
            values.floats().chunks(classes).map(likeliest).collect::<Vec<_>>()
        });
        found.zip(images.labels()).filter(|(found, label)| *found == *label as usize).count()
    }
}

/// Returns a part of the forward pass that runs alone: it frees every slot that it does not read again,
/// except some.
fn alone(program: &Program, list: Vec<Instruction>, lasting: &[Slot]) -> Vec<Instruction> {
    let kept = list.into_iter().filter(|it| !matches!(it, Instruction::Free { .. }));
    let homes = program.parameters.iter().map(|parameter| parameter.home);
    let lasting: Vec<Slot> = homes.chain(lasting.iter().copied()).collect();
    let mut phases = [((), kept.collect())];
    insert_frees(&mut phases, &lasting);
    let [((), list)] = phases;
    list
}
