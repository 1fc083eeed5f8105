//! Operators, one file each.
//!
//! An operator's fields hold nothing that its operands' shapes say. Its file has three parts: what
//! its axes are, what it means, and what its gradients are.

mod arithmetic;
mod layer_norm;
mod linear;

pub use arithmetic::Arithmetic;
pub use layer_norm::LayerNorm;
pub use linear::Linear;

use crate::array::Array;
use crate::axis::Declaration;
use crate::error::{Error, Kind};
use crate::region::Region;

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operator {
    /// A product with a weight, and perhaps a bias.
    Linear(Linear),
    /// Element by element, with broadcast.
    Arithmetic(Arithmetic),
    /// Mean zero and variance one within a token, then gain and bias.
    LayerNorm(LayerNorm),
}

/// What an operator's file says.
trait Rule {
    /// Its axes and operands, for inputs of these shapes.
    fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error>;

    /// Its meaning, on a part of its axes: plain, slow, in f64.
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array>;
}

impl Operator {
    /// What it does to inputs of these shapes.
    ///
    /// # Errors
    /// If it cannot take them.
    pub fn declare(&self, inputs: &[&[usize]]) -> Result<Declaration, Error> {
        let named = |error: Error| error.at(self.name());
        let declaration = self.rule().declare(inputs).map_err(named)?;
        declaration.check(inputs).map_err(named)?;
        Ok(declaration)
    }

    /// Its meaning, on a part of its axes: plain, slow, in f64. Inputs are local, and so is what
    /// comes out.
    pub fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        self.rule().evaluate(inputs, region)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Operator::Linear(_) => "linear",
            Operator::Arithmetic(operator) => operator.name(),
            Operator::LayerNorm(_) => "layer_norm",
        }
    }

    fn rule(&self) -> &dyn Rule {
        match self {
            Operator::Linear(operator) => operator,
            Operator::Arithmetic(operator) => operator,
            Operator::LayerNorm(operator) => operator,
        }
    }
}

/// Exactly N inputs.
fn inputs<'a, const N: usize>(inputs: &[&'a [usize]]) -> Result<[&'a [usize]; N], Error> {
    inputs.try_into().map_err(|_| {
        Error::new(Kind::Operands, format!("has {} inputs, expected {N}", inputs.len()))
    })
}

/// A shape's last dimension and those before it.
fn split_last<'a>(name: &str, shape: &'a [usize]) -> Result<(usize, &'a [usize]), Error> {
    let none =
        || Error::new(Kind::Operands, format!("{name} has no dimension, expected one or more"));
    shape.split_last().map(|(last, leading)| (*last, leading)).ok_or_else(none)
}

/// A shape of exactly N dimensions.
fn dims<const N: usize>(name: &str, shape: &[usize]) -> Result<[usize; N], Error> {
    shape.try_into().map_err(|_| {
        let message = format!("{name} has {} dimensions {shape:?}, expected {N}", shape.len());
        Error::new(Kind::Operands, message)
    })
}
