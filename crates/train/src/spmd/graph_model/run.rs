//! Forward of one micro-batch through a program of one rank.

use thinwire_model::{Operator, Region};
use thinwire_program::{Instruction, Slot, freed};

use super::GraphModel;
use crate::spmd::inputs::Inputs;
use crate::spmd::kernel;
use crate::spmd::value::Value;

/// A micro-batch under way.
pub struct Run<'a> {
    model: &'a GraphModel,
    inputs: &'a Inputs,
    slots: Vec<Option<Value>>,
}

impl<'a> Run<'a> {
    /// Starts before the first instruction, with the values of slots that last.
    pub fn new(model: &'a GraphModel, inputs: &'a Inputs, slots: Vec<Option<Value>>) -> Run<'a> {
        Run { model, inputs, slots }
    }

    /// Follows a list of forward. Nothing is dropped out.
    pub fn through(&mut self, list: &[Instruction]) {
        for (at, instruction) in list.iter().enumerate() {
            match instruction {
                Instruction::Load { to } => self.load(*to),
                Instruction::Compute { node, inputs, outputs } => {
                    self.compute(*node, (inputs, outputs), &list[at + 1..]);
                }
                Instruction::Free { slot } => self.slots[*slot] = None,
                other => unreachable!("forward of one rank up to logits has {other:?}"),
            }
        }
    }

    /// Returns the value of a slot.
    pub fn value(&self, slot: Slot) -> &Value {
        self.slots[slot].as_ref().expect("filled before it is read")
    }

    fn load(&mut self, to: Slot) {
        let array = &self.inputs[&self.model.program.slots[to].tensor];
        self.slots[to] = Some(Value::from_array(array));
    }

    fn compute(
        &mut self,
        node: usize,
        (inputs, outputs): (&[Slot], &[Slot]),
        rest: &[Instruction],
    ) {
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

    /// Returns the values of slots. A slot that is freed right afterwards is emptied first, so that
    /// its last reader has the value for itself.
    fn read(&mut self, slots: &[Slot], rest: &[Instruction]) -> Vec<Value> {
        let values = slots.iter().map(|slot| self.value(*slot).clone()).collect();
        freed(rest).iter().for_each(|slot| self.slots[*slot] = None);
        values
    }
}
