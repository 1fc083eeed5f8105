//! Arithmetic element by element, with broadcast: `x[..] y[..] -> z[..]`.
//!
//! The second operand may lack leading dimensions, or be 1 long where the first is longer.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::{Array, Axes, Declaration, Error, Kind, Operand, Region};

/// One of the four operations; inputs x and y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// x + y.
    Add,
    /// x − y.
    Subtract,
    /// x · y.
    Multiply,
    /// x / y.
    Divide,
}

impl Arithmetic {
    fn of(self, x: f64, y: f64) -> f64 {
        match self {
            Arithmetic::Add => x + y,
            Arithmetic::Subtract => x - y,
            Arithmetic::Multiply => x * y,
            Arithmetic::Divide => x / y,
        }
    }
}

impl Rule for Arithmetic {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, y] = inputs(shapes)?;
        let missing = x.len().checked_sub(y.len()).ok_or_else(|| {
            let message =
                format!("y has {} dimensions, expected at most {} of x", y.len(), x.len());
            Error::new(Kind::Operands, message)
        })?;
        let mut axes = Axes::default();
        let whole = axes.all(x)?;
        let flops = axes.points();
        let mut dims = whole[missing..].to_vec();
        for (dim, (length, name)) in dims.iter_mut().zip(y.iter().zip('0'..)) {
            if *length == 1 && axes.length(*dim) > 1 {
                *dim = axes.never(name, 1);
            }
        }
        let operands = [Operand::new("x", &whole[..]), Operand::new("y", dims)];
        let mut declaration = axes.declare(operands, [Operand::new("z", whole)], flops);
        declaration.linear = matches!(self, Arithmetic::Add | Arithmetic::Subtract);
        Ok(declaration)
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, y] = [inputs[0], inputs[1]];
        let missing = x.shape().len() - y.shape().len();
        let z = Array::from_fn(region.output_shape(0), |at| {
            let places = at[missing..].iter().zip(y.shape());
            let other: Vec<usize> = places.map(|(i, length)| *i.min(&(length - 1))).collect();
            self.of(x.at(at), y.at(&other))
        });
        vec![z]
    }
}
