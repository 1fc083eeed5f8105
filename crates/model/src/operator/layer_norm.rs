//! Layer norm: `x[..,n] gain[n] bias[n] -> y[..,n]`.
//!
//! Ba, Kiros, Hinton, "Layer Normalization": mean and variance are those of a token's features, so
//! the axis n stays whole.

use serde::{Deserialize, Serialize};

use super::operand::{inputs, split_last};
use super::{Epsilon, Rule};
use crate::{Axes, Declaration, Error, Operand};

/// Mean zero and variance one within a token; inputs x, gain, bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm(pub Epsilon);

/// The gradients of x, gain and bias; inputs x, gain, dy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerNormBackward(pub LayerNorm);

/// Declares operands that are tokens (`true`) or one number per feature.
pub(super) fn tokens(
    x: &[usize],
    inputs: &[(&'static str, bool)],
    outputs: &[(&'static str, bool)],
    flops_per_element: f64,
) -> Result<Declaration, Error> {
    let (n, leading) = split_last("x", x)?;
    let mut axes = Axes::default();
    let mut token = axes.leading(leading)?;
    let n = axes.never('n', n);
    token.push(n);
    let flops = flops_per_element * axes.points();
    let operand = |(name, whole): &(&'static str, bool)| match whole {
        true => Operand::new(name, &token[..]),
        false => Operand::new(name, [n]),
    };
    let all = |list: &[(&'static str, bool)]| list.iter().map(operand).collect::<Vec<_>>();
    Ok(axes.declare(all(inputs), all(outputs), flops))
}

impl Rule for LayerNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        self.0.check()?;
        let [x, _, _] = inputs(shapes)?;
        tokens(x, &[("x", true), ("gain", false), ("bias", false)], &[("y", true)], 8.0)
    }
}

impl Rule for LayerNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        let outputs = [("dx", true), ("dgain", false), ("dbias", false)];
        tokens(x, &[("x", true), ("gain", false), ("dy", true)], &outputs, 14.0)
    }
}
