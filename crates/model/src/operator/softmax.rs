//! Softmax over the last dimension: `x[..,n] -> y[..,n]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, split_last};
use crate::error::refuse_if;
use crate::{Axes, Declaration, Error, Kind, Operand};

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
        refuse_if(self.causal && x.len() < 2, Kind::Operands, || {
            format!("x has shape {x:?}, expected queries and keys")
        })?;
        rows(x, &["x"], "y", 5.0)
    }
}

impl Rule for SoftmaxBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [y, _] = inputs(shapes)?;
        rows(y, &["y", "dy"], "dx", 4.0)
    }
}

/// Rows of which the last axis stays whole.
fn rows(
    shape: &[usize],
    inputs: &[&'static str],
    output: &'static str,
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    let (n, leading) = split_last(inputs[0], shape)?;
    let mut axes = Axes::default();
    let mut dims = axes.leading(leading)?;
    dims.push(axes.never('n', n));
    let flops = flops_per_element * axes.points();
    let operands: Vec<_> = inputs.iter().map(|name| Operand::new(name, &dims[..])).collect();
    Ok(axes.declare(operands, [Operand::new(output, dims)], flops))
}
