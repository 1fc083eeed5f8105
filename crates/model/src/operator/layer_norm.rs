//! Layer norm: `x[..,n] gain[n] bias[n] -> y[..,n]`.
//!
//! Ba, Kiros, Hinton, "Layer Normalization": mean and variance are computed over a token's features, so
//! the axis n must stay whole.

use serde::{Deserialize, Serialize};

use super::operand::{inputs, norm, split_last};
use super::{Epsilon, Rule};
use crate::{Axes, Declaration, Error};

/// Normalises each token to mean zero and variance one, then applies gain and bias; inputs x, gain, bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm(pub Epsilon);

/// The gradients of x, gain and bias; inputs x, gain, dy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerNormBackward(pub LayerNorm);

/// Declares operands that are tokens, or have one number per feature.
pub(super) fn tokens(
    x: &[usize],
    operands: [&[&'static str]; 2],
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    let (n, leading) = split_last("x", x)?;
    let mut axes = Axes::default();
    let mut token = axes.leading(leading)?;
    let n = axes.never('n', n);
    token.push(n);
    Ok(norm(axes, &token, n, operands, flops_per_element))
}

impl Rule for LayerNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        self.0.check()?;
        let [x, _, _] = inputs(shapes)?;
        tokens(x, [&["x", "gain", "bias"], &["y"]], 8.0)
    }
}

impl Rule for LayerNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        tokens(x, [&["x", "gain", "dy"], &["dx", "dgain", "dbias"]], 14.0)
    }
}
