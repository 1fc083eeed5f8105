//! Operands: the inputs of a node.

use thinwire_model::Error;

use super::{Importer, refuse};
use crate::constant::Constant;
use crate::half::Stage;
use crate::value::{Value, Weight};

impl Importer<'_> {
    /// Returns an input without converting it.
    pub fn value(&self, index: usize) -> Result<&Value, Error> {
        let name = self.call.node.input.get(index).copied().unwrap_or_default();
        self.values.get(name).ok_or_else(|| {
            refuse(match self.call.inputs() {
                inputs if inputs <= index => {
                    format!("it has {inputs} inputs, expected {} or more", index + 1)
                }
                _ if name.is_empty() => format!("its input {index} is left out, expected a name"),
                _ => format!("its input '{name}' is not written by an earlier node"),
            })
        })
    }

    /// Returns an input of known numbers.
    pub fn constant(&self, index: usize) -> Result<Constant, Error> {
        match self.value(index)? {
            Value::Constant(constant) => Ok(constant.clone()),
            Value::Stored(weight) => self.numbers(weight),
            _ => {
                let name = self.call.node.input[index];
                Err(refuse(format!("input '{name}' is not constant, expected known numbers")))
            }
        }
    }

    /// Returns a list of integers: an attribute or, in later versions, a constant input.
    pub fn list(&self, name: &str, index: usize) -> Result<Option<Vec<i64>>, Error> {
        match self.call.integers(name) {
            Some(list) => Ok(Some(list.to_vec())),
            None if self.call.has(index) => Ok(Some(self.constant(index)?.integers())),
            None => Ok(None),
        }
    }

    /// Returns whether the numbers of an input are known, or can be read.
    pub fn is_fixed(&self, index: usize) -> bool {
        matches!(self.value(index), Ok(Value::Constant(_) | Value::Stored(_)))
    }

    /// Returns an input as a weight, if it may be trained.
    pub fn weight(&self, index: usize) -> Option<Weight> {
        match self.value(index) {
            Ok(Value::Weight(weight) | Value::Stored(weight)) => Some(weight.clone()),
            _ => None,
        }
    }

    /// Turns a stored value that no operator trains into a constant. A value whose name shows that it is
    /// trained becomes a constant only if some of its numbers are so low that it must be a mask. Returns
    /// any other value unchanged.
    pub fn known(&self, value: Value) -> Result<Value, Error> {
        match &value {
            Value::Stored(weight) => self.numbers(weight).map(Value::Constant),
            Value::Weight(weight) => match self.numbers(weight) {
                Ok(numbers) if numbers.hides() => Ok(Value::Constant(numbers)),
                _ => Ok(value),
            },
            _ => Ok(value),
        }
    }

    /// Returns whether only this node reads an input.
    pub fn alone(&self, index: usize) -> bool {
        self.call.node.input.get(index).and_then(|name| self.uses.get(name)) == Some(&1)
    }

    /// Returns whether the node writes the file's output.
    pub fn is_output(&self) -> bool {
        let mut outputs = self.file.output.iter();
        outputs.any(|output| self.call.node.output.contains(&output.name))
    }

    /// Returns whether only one node reads a weight.
    pub fn once(&self, weight: &Weight) -> bool {
        self.uses.get(&weight.name[..]) == Some(&1)
    }

    /// Returns the shape of a value.
    pub fn shape(&self, value: &Value) -> Vec<usize> {
        match value {
            Value::Tensor(id) => self.graph.tensors[*id].shape.clone(),
            Value::Weight(weight) | Value::Stored(weight) => weight.shape.clone(),
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
