//! Arithmetic on corresponding elements, with broadcast: `x[..] y[..] -> z[..]`.
//!
//! The second operand may lack leading dimensions, and may have length 1 in dimensions in which the
//! first operand is longer.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::{Axes, Declaration, Error, Kind, Operand};

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

impl Rule for Arithmetic {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, y] = inputs(shapes)?;
        let missing = x.len().checked_sub(y.len()).ok_or_else(|| {
            let message =
                format!("y has {} dimensions, expected at most the {} of x", y.len(), x.len());
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
}
