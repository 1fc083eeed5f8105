//! Forward of one micro-batch up to its logits.

use thinwire_model::Operator;
use thinwire_program::{Instruction, Slot};

use super::run::Run;
use super::{GraphModel, alone};
use crate::spmd::inputs::Inputs;
use crate::spmd::value::Value;

/// A model that predicts, with what its parameters are.
pub struct Logits<'a> {
    /// The model.
    pub model: &'a GraphModel,
    homes: Vec<Option<Value>>,
    list: Vec<Instruction>,
    slot: Slot,
}

impl<'a> Logits<'a> {
    /// Takes values of the parameters in the model's order.
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

    /// The logits of a micro-batch, a row for each prediction.
    pub fn of(&self, inputs: &Inputs) -> Value {
        let mut run = Run::new(self.model, inputs, self.homes.clone());
        run.through(&self.list);
        run.value(self.slot).clone()
    }
}
