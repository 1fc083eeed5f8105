//! Converts values to tensors of the graph.

use thinwire_model::{
    Activation, Arithmetic, Constant as Known, Element, Epsilon, Error, Fill, Kind, LayerNorm,
    RmsNorm, Role, Summed, TensorId,
};

use super::{Importer, WEIGHT};
use crate::constant::Constant;
use crate::half::{Half, Stage};
use crate::value::Value;

/// Operators with which formulas end.
const WHOLE: &str = "GELU, SiLU, layer norm, RMS norm or causal attention";

impl Importer<'_> {
    /// Returns a value as a tensor.
    pub fn tensor_of(&mut self, name: &str, value: Value) -> Result<TensorId, Error> {
        match value {
            Value::Tensor(id) => Ok(id),
            Value::Weight(weight) => self.parameter(&weight, WEIGHT),
            Value::Stored(weight) => {
                let numbers = self.numbers(&weight)?;
                self.fixed(name, numbers)
            }
            Value::Constant(constant) => self.fixed(name, constant),
            Value::Half(half) => self.finish(&half),
        }
    }

    /// Adds known numbers, which are never trained. Indices become inputs, as if they were data. A model
    /// of text then gets positions counted from 0 in place of a row of indices, so a row of other
    /// indices is refused.
    fn fixed(&mut self, name: &str, constant: Constant) -> Result<TensorId, Error> {
        let row = constant.shape.last() == Some(&constant.values.len());
        match (constant.uniform(), constant.whole) {
            (Some(value), false) => self.apply(name, Fill { shape: constant.shape, value }, &[]),
            (_, true) if row && !constant.is_counted() => {
                let shape = constant.shape;
                let message =
                    format!("'{name}' has indices of shape {shape:?} that are not 0, 1, 2 …");
                Err(Error::new(Kind::Operands, format!("{message}, expected positions")))
            }
            (_, true) => Ok(self.graph.source(name, constant.shape, Element::Index, Role::Input)),
            (_, false) => {
                let values = constant.values.iter().map(|value| *value as f32).collect();
                self.apply(name, Known { shape: constant.shape, values }, &[])
            }
        }
    }

    /// Computes the stage of a formula that does not continue.
    fn finish(&mut self, half: &Half) -> Result<TensorId, Error> {
        let shape = self.graph.tensors[half.x].shape.clone();
        let (name, features) = (half.node.clone(), shape.last().copied().unwrap_or(1));
        match half.stage {
            Stage::Normal | Stage::ScaledNormal => {
                let gain = self.gain(half, features)?;
                let bias = self.fill(&name, features, 0.0)?;
                self.apply(&name, LayerNorm(Epsilon { value: half.epsilon }), &[half.x, gain, bias])
            }
            Stage::RootNormal => {
                let gain = self.gain(half, features)?;
                self.apply(&name, RmsNorm(Epsilon { value: half.epsilon }), &[half.x, gain])
            }
            Stage::Sigmoid => self.apply(&name, Activation::Sigmoid, &[half.x]),
            Stage::Square => self.apply(&name, Arithmetic::Multiply, &[half.x, half.x]),
            Stage::Mean => self.mean(&name, half.x, &[shape.len() - 1], Summed::ToOne),
            Stage::Centred => {
                let mean = self.mean(&name, half.x, &[shape.len() - 1], Summed::ToOne)?;
                self.apply(&name, Arithmetic::Subtract, &[half.x, mean])
            }
            _ => {
                let message = format!("'{name}' is only supported as a part of {}", WHOLE);
                Err(Error::new(Kind::Operands, message))
            }
        }
    }

    fn gain(&mut self, half: &Half, features: usize) -> Result<TensorId, Error> {
        match half.gain {
            Some(gain) => Ok(gain),
            None => self.fill(&half.node, features, 1.0),
        }
    }

    fn fill(&mut self, name: &str, features: usize, value: f64) -> Result<TensorId, Error> {
        self.apply(&format!("{name}.fill"), Fill { shape: vec![features], value }, &[])
    }
}
