//! Forward pass of one micro-batch up to its logits.

use thinwire_model::{Operator, Region};
use thinwire_program::{Instruction, Slot, freed};

use super::{GraphModel, alone};
use crate::spmd::kernel;
use crate::spmd::text::Inputs;
use crate::spmd::value::Value;

/// A model for predictions, with the values of its parameters.
pub struct Logits<'a> {
    /// The model.
    pub model: &'a GraphModel,
    homes: Vec<Option<Value>>,
    list: Vec<Instruction>,
    slot: Slot,
}

impl<'a> Logits<'a> {
    /// Stores values of the parameters, given in the model's order.
    pub fn new(model: &'a GraphModel, values: &[Vec<f32>]) -> Logits<'a> {
        let forward = &model.program.forward[0];
        let nodes = &model.training.graph.nodes;
        let compared = forward.iter().enumerate().rev().find_map(|(at, it)| match it {
            Instruction::Compute { node, inputs, .. } => {
                let loss = matches!(nodes[*node].operator, Operator::CrossEntropy(_));
                loss.then(|| (at, inputs[0]))
            }
            _ => None,
        });
        let (end, slot) = compared.expect("a model compares logits with targets");
        let list = alone(&model.program, forward[..end].to_vec(), &[slot]);
        Logits { model, homes: model.homes(values), list, slot }
    }

    /// Returns the logits of a micro-batch, one row per prediction.
    pub fn of(&self, inputs: &Inputs) -> Value {
        let mut run = Run::new(self.model, inputs, self.homes.clone());
        run.through(&self.list);
        run.value(self.slot).clone()
    }
}

/// A micro-batch under way.
struct Run<'a> {
    model: &'a GraphModel,
    inputs: &'a Inputs,
    slots: Vec<Option<Value>>,
}

impl<'a> Run<'a> {
    /// Creates the state before the first instruction, with the values of lasting slots.
    fn new(model: &'a GraphModel, inputs: &'a Inputs, slots: Vec<Option<Value>>) -> Run<'a> {
        Run { model, inputs, slots }
    }

    /// Runs a list of instructions of the forward pass, without dropout.
    fn through(&mut self, list: &[Instruction]) {
        for (at, instruction) in list.iter().enumerate() {
            match instruction {
                Instruction::Load { to } => self.load(*to),
                Instruction::Compute { node, inputs, outputs } => {
                    self.compute(*node, inputs, outputs, &list[at + 1..]);
                }
                Instruction::Free { slot } => self.slots[*slot] = None,
                other => unreachable!("forward of one rank up to logits has {other:?}"),
            }
        }
    }

    /// Returns the value of a slot.
    fn value(&self, slot: Slot) -> &Value {
        self.slots[slot].as_ref().expect("filled before it is read")
    }

    fn load(&mut self, to: Slot) {
        let array = &self.inputs[&self.model.program.slots[to].tensor];
        self.slots[to] = Some(Value::from_array(array));
    }

    fn compute(&mut self, node: usize, inputs: &[Slot], outputs: &[Slot], rest: &[Instruction]) {
        let values = self.read(inputs, rest);
        let operator = &self.model.training.graph.nodes[node].operator;
        let region = Region::whole(&self.model.declarations[node]);
        let results = match operator {
            Operator::Dropout(_) => values,
            _ => kernel::compute(operator, values, &region),
        };
        for (slot, value) in outputs.iter().zip(results) {
            self.slots[*slot] = Some(value);
        }
    }

    /// Returns the values of slots. A slot that is freed directly afterwards is emptied first, so that its
    /// last reader does not share the value.
    fn read(&mut self, slots: &[Slot], rest: &[Instruction]) -> Vec<Value> {
        let values = slots.iter().map(|slot| self.value(*slot).clone()).collect();
        freed(rest).iter().for_each(|slot| self.slots[*slot] = None);
        values
    }
}
