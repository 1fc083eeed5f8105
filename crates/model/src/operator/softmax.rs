//! Softmax over the last dimension: `x[..,n] -> y[..,n]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, rows};
use crate::{Declaration, Error, Kind};

/// Exponentials that sum to one; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softmax {
    /// Whether the last two dimensions are queries and keys, and no query sees a later key.
    pub causal: bool,
}

/// The gradient of x; inputs y and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SoftmaxBackward;

impl Rule for Softmax {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        if self.causal && x.len() < 2 {
            let message = format!("x has shape {x:?}, expected queries and keys");
            return Err(Error::new(Kind::Operands, message));
        }
        rows('n', x, &["x"], "y", 5.0)
    }
}

impl Rule for SoftmaxBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [y, _] = inputs(shapes)?;
        rows('n', y, &["y", "dy"], "dx", 4.0)
    }
}
