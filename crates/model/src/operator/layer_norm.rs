//! Layer norm: `x[..,n] gain[n] bias[n] -> y[..,n]`.
//!
//! Ba, Kiros, Hinton, "Layer Normalization": mean and variance are those of a token's features, so
//! the axis n stays whole.

use super::{Rule, inputs, split_last};
use crate::array::Array;
use crate::axis::{Axes, Declaration, Operand};
use crate::error::Error;
use crate::region::Region;

/// What is added to the variance before its root is taken.
pub const EPSILON: f64 = 1e-5;

/// Mean zero and variance one within a token; inputs x, gain, bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorm;

impl Rule for LayerNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        let (n, leading) = split_last("x", x)?;
        let mut axes = Axes::default();
        let leading = axes.leading(leading);
        let n = axes.never('n', n);
        let flops = 8.0 * axes.points();
        let token = [&leading[..], &[n]].concat();
        let operands =
            [Operand::new("x", &token[..]), Operand::new("gain", [n]), Operand::new("bias", [n])];
        Ok(axes.declare(operands, [Operand::new("y", token)], flops))
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, gain, bias) = (inputs[0], inputs[1], inputs[2]);
        let mut y = x.clone();
        for token in y.values_mut().chunks_mut(gain.values().len()) {
            let (mean, deviation) = moments(token);
            for (at, value) in token.iter_mut().enumerate() {
                *value = (*value - mean) / deviation * gain.values()[at] + bias.values()[at];
            }
        }
        vec![y]
    }
}

/// The mean of a token's features and their standard deviation.
fn moments(token: &[f64]) -> (f64, f64) {
    let count = token.len() as f64;
    let mean = token.iter().sum::<f64>() / count;
    let variance = token.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, (variance + EPSILON).sqrt())
}
