//! One micro-batch on its way through a program of one rank.

use thinwire_model::{Operator, Region};
use thinwire_program::{Instruction, Slot, freed};

use super::Derived;
use crate::error::Error;
use crate::spmd::kernel;
use crate::spmd::machine::Inputs;
use crate::spmd::value::Value;

/// What takes a share of a parameter's gradient, by the parameter's index in the program.
pub type Take<'a> = dyn FnMut(usize, Value) -> Result<(), Error> + 'a;

/// A micro-batch under way.
pub struct Run<'a> {
    derived: &'a Derived,
    inputs: &'a Inputs,
    slots: Vec<Option<Value>>,
    /// What random numbers dropouts take; none if nothing is dropped.
    moment: Option<u64>,
}

impl<'a> Run<'a> {
    /// Before its first instruction, with what is in the slots that last. Nothing is dropped out.
    pub fn new(derived: &'a Derived, inputs: &'a Inputs, slots: Vec<Option<Value>>) -> Run<'a> {
        Run { derived, inputs, slots, moment: None }
    }

    /// The same with dropouts, by the random numbers of a moment.
    pub fn with_dropout(self, moment: u64) -> Run<'a> {
        Run { moment: Some(moment), ..self }
    }

    /// Does what a list says. The loss, if it is in there.
    ///
    /// # Errors
    /// What `take` returns.
    pub fn through(&mut self, list: &[Instruction], take: &mut Take<'_>) -> Result<f32, Error> {
        let mut loss = 0.0;
        for (at, instruction) in list.iter().enumerate() {
            let rest = &list[at + 1..];
            match instruction {
                Instruction::Load { to } => self.load(*to),
                Instruction::Compute { node, inputs, outputs } => {
                    self.compute(*node, (inputs, outputs), rest);
                }
                Instruction::Gradient { parameter, slot } => {
                    take(*parameter, self.read(&[*slot], rest).remove(0))?;
                }
                Instruction::Loss { slot } => loss = self.value(*slot).floats()[0],
                Instruction::Free { slot } => self.slots[*slot] = None,
                Instruction::Convert(_) | Instruction::Send { .. } | Instruction::Recv { .. } => {
                    unreachable!("one rank has nobody to tell anything")
                }
            }
        }
        Ok(loss)
    }

    /// What a slot holds.
    pub fn value(&self, slot: Slot) -> &Value {
        self.slots[slot].as_ref().expect("filled before it is read")
    }

    fn load(&mut self, to: Slot) {
        let array = &self.inputs[&self.derived.program.slots[to].tensor];
        self.slots[to] = Some(Value::from_array(array));
    }

    fn compute(
        &mut self,
        node: usize,
        (inputs, outputs): (&[Slot], &[Slot]),
        rest: &[Instruction],
    ) {
        let values = self.read(inputs, rest);
        let operator = &self.derived.training.graph.nodes[node].operator;
        let region = Region::whole(&self.derived.declarations[node]);
        let results = match (operator, self.moment) {
            (Operator::Dropout(_), None) => values,
            (_, moment) => {
                let region = region.with_random(0, moment.unwrap_or(0));
                kernel::compute(operator, values, &region)
            }
        };
        for (slot, value) in outputs.iter().zip(results) {
            self.slots[*slot] = Some(value);
        }
    }

    /// What slots hold. Those that are let go right afterwards are emptied first, so that their last
    /// reader has them for itself.
    fn read(&mut self, slots: &[Slot], rest: &[Instruction]) -> Vec<Value> {
        let values = slots.iter().map(|slot| self.value(*slot).clone()).collect();
        freed(rest).iter().for_each(|slot| self.slots[*slot] = None);
        values
    }
}
