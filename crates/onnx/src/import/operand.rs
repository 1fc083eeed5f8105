//! Operands: what a node reads.

use thinwire_model::{Error, TensorId};

use super::{Call, Importer};
use crate::constant::Constant;
use crate::half::Stage;
use crate::value::{Value, Weight};

impl Importer<'_> {
    /// An input as it is.
    pub fn value(&self, call: &Call<'_>, index: usize) -> Result<&Value, Error> {
        let name = call.node.input.get(index).copied().unwrap_or_default();
        self.values.get(name).ok_or_else(|| {
            call.refuse(match call.inputs() {
                inputs if inputs > index => format!("input {index} has no name, expected a tensor"),
                inputs => format!("it has {inputs} inputs, expected {} or more", index + 1),
            })
        })
    }

    /// An input, computed.
    pub fn tensor(&mut self, call: &Call<'_>, index: usize) -> Result<TensorId, Error> {
        let value = self.value(call, index)?.clone();
        let name = call.node.input[index].to_owned();
        self.tensor_of(&name, value)
    }

    /// An input of known numbers.
    pub fn constant(&self, call: &Call<'_>, index: usize) -> Result<Constant, Error> {
        match self.value(call, index)? {
            Value::Constant(constant) => Ok(constant.clone()),
            _ => {
                let name = call.node.input[index];
                Err(call.refuse(format!("input '{name}' is not constant, expected known numbers")))
            }
        }
    }

    /// An input that is trained.
    pub fn weight(&self, call: &Call<'_>, index: usize) -> Option<Weight> {
        match self.value(call, index) {
            Ok(Value::Weight(weight)) => Some(weight.clone()),
            _ => None,
        }
    }

    /// Whether nothing else reads an input.
    pub fn alone(&self, call: &Call<'_>, index: usize) -> bool {
        call.node.input.get(index).and_then(|name| self.uses.get(name)) == Some(&1)
    }

    /// Whether a node writes the file's output.
    pub fn is_output(&self, call: &Call<'_>) -> bool {
        let mut outputs = self.file.output.iter();
        outputs.any(|output| call.node.output.contains(&output.name))
    }

    /// Whether nothing but one node reads a weight.
    pub fn once(&self, weight: &Weight) -> bool {
        self.uses.get(&weight.name[..]) == Some(&1)
    }

    /// The shape of a value.
    pub fn shape(&self, value: &Value) -> Vec<usize> {
        match value {
            Value::Tensor(id) => self.graph.tensors[*id].shape.clone(),
            Value::Weight(weight) => weight.shape.clone(),
            Value::Constant(constant) => constant.shape.clone(),
            Value::Half(half) => {
                let mut shape = self.graph.tensors[half.x].shape.clone();
                let single = [
                    Stage::Mean,
                    Stage::Variance,
                    Stage::VarianceSum,
                    Stage::Deviation,
                    Stage::InverseDeviation,
                    Stage::MeanSquare,
                    Stage::MeanSquareSum,
                    Stage::Root,
                    Stage::InverseRoot,
                ];
                match shape.last_mut() {
                    Some(last) if single.contains(&half.stage) => *last = 1,
                    _ => {}
                }
                shape
            }
        }
    }
}
