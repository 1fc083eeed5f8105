//! Broadcast along some dimensions, the transpose of a sum: `x[n] -> y[b,s,n]`.

use serde::{Deserialize, Serialize};

use super::operand::inputs;
use super::{Rule, Sum};
use crate::{Axes, Declaration, Error, Operand};

/// A broadcast; input x.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broadcast {
    /// The shape of the output.
    pub shape: Vec<usize>,
    /// The sum of which this broadcast is the transpose.
    pub sum: Sum,
}

impl Rule for Broadcast {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [_] = inputs(shapes)?;
        let mut axes = Axes::default();
        let [y, x]: [Operand; 2] = self.sum.operands(&mut axes, &self.shape, ["y", "x"])?;
        Ok(axes.declare([x], [y], 0.0).linear())
    }
}
