//! A tensor with one value everywhere: `-> x[..]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{SINGLE, check_number, inputs};
use crate::{Axes, Declaration, Error, Operand};

/// A tensor with one value everywhere; no inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// The shape of the output.
    pub shape: Vec<usize>,
    /// The number.
    pub value: f64,
}

impl Rule for Fill {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [] = inputs(shapes)?;
        check_number("value", self.value, SINGLE)?;
        let mut axes = Axes::default();
        let dims = axes.all(&self.shape)?;
        Ok(axes.declare([], [Operand::new("x", dims)], 0.0))
    }
}
