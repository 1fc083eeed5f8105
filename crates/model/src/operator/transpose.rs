//! Dimensions in another order: `x[b,s,n] -> y[b,n,s]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::inputs;
use crate::{Axes, Declaration, Error, Kind, Operand};

/// A permutation of dimensions; input x. A letter names the axis of each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transpose {
    /// The axes of x.
    pub input: String,
    /// The axes of y: the axes of x in another order.
    pub output: String,
}

impl Transpose {
    /// Creates a permutation from two lists of axes.
    pub fn new(input: impl Into<String>, output: impl Into<String>) -> Transpose {
        Transpose { input: input.into(), output: output.into() }
    }

    /// Returns, for each dimension of y, the dimension of x with the same axis.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.output
            .chars()
            .filter_map(|letter| self.input.chars().position(|l| l == letter))
            .collect()
    }
}

impl Rule for Transpose {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let sorted = |letters: &str| {
            let mut letters: Vec<char> = letters.chars().collect();
            letters.sort_unstable();
            letters
        };
        let mut once = sorted(&self.input);
        once.dedup();
        if once.len() != x.len() || once != sorted(&self.output) {
            let message = format!(
                "'{}' to '{}' does not reorder the dimensions of shape {x:?}",
                self.input, self.output
            );
            return Err(Error::new(Kind::Operands, message));
        }
        let mut axes = Axes::default();
        let letters = self.input.chars().zip(x);
        let dims: Vec<_> = letters.map(|(letter, length)| axes.even(letter, *length)).collect();
        let turned: Vec<_> = self.order().iter().map(|dim| dims[*dim]).collect();
        let outputs = [Operand::new("y", turned)];
        Ok(axes.declare([Operand::new("x", dims)], outputs, 0.0).linear())
    }
}
