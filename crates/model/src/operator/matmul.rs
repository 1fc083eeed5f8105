//! A product of two tensors over any axes: `x[b,s,k] y[b,k,n] -> z[b,s,n]`.
//!
//! As in Einstein's notation, the product is summed over axes that the output does not have.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::{Axes, Declaration, Error, Kind, Operand};

/// A product; inputs x and y. A letter names the axis of each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatMul {
    /// The axes of x.
    pub left: String,
    /// The axes of y.
    pub right: String,
    /// The axes of the product, each of them an axis of x or y.
    pub output: String,
}

impl MatMul {
    /// Returns a product with these three lists of axes.
    pub fn new(
        left: impl Into<String>,
        right: impl Into<String>,
        output: impl Into<String>,
    ) -> MatMul {
        MatMul { left: left.into(), right: right.into(), output: output.into() }
    }
}

impl Rule for MatMul {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, y] = inputs(shapes)?;
        for (name, letters, shape) in [("x", &self.left, x), ("y", &self.right, y)] {
            if letters.chars().count() != shape.len() {
                let message = format!(
                    "{name} has shape {shape:?}, expected one length for each of '{letters}'"
                );
                return Err(Error::new(Kind::Operands, message));
            }
        }
        let mut axes = Axes::default();
        let letters = self.left.chars().chain(self.right.chars());
        for (letter, length) in letters.zip(x.iter().chain(y)) {
            if axes.named(letter).is_none() {
                axes.even(letter, *length);
            }
        }
        let operand = |name, letters: &str| {
            let unknown = |letter| {
                Error::new(
                    Kind::Operands,
                    format!("{name} has an axis '{letter}' that neither x nor y has"),
                )
            };
            let dims =
                letters.chars().map(|letter| axes.named(letter).ok_or_else(|| unknown(letter)));
            Ok(Operand::new(name, dims.collect::<Result<Vec<_>, Error>>()?))
        };
        let operands = [operand("x", &self.left)?, operand("y", &self.right)?];
        let output = operand("z", &self.output)?;
        let flops = 2.0 * axes.points();
        Ok(axes.declare(operands, [output], flops))
    }
}
