//! Softmax over the last dimension: `x[..,n] -> y[..,n]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{inputs, split_last};
use crate::error::refuse_if;
use crate::{Array, Axes, Declaration, Error, Kind, Operand, Region};

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

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let mut y = inputs[0].clone();
        let (keys, queries) = match *y.shape() {
            [.., queries, keys] => (keys, queries),
            _ => (y.values().len(), 1),
        };
        let first = region.output(0).iter().rev().nth(1).map_or(0, |part| part.start);
        for (row, values) in y.values_mut().chunks_mut(keys).enumerate() {
            let seen = if self.causal { keys.min(first + row % queries + 1) } else { keys };
            values[seen..].fill(0.0);
            softmax(&mut values[..seen]);
        }
        vec![y]
    }
}

impl Rule for SoftmaxBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [y, _] = inputs(shapes)?;
        rows(y, &["y", "dy"], "dx", 4.0)
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let [y, dy] = [inputs[0], inputs[1]];
        let length = y.shape().last().copied().unwrap_or(1).max(1);
        let mut dx = y.clone();
        for (y, dy) in dx.values_mut().chunks_mut(length).zip(dy.values().chunks(length)) {
            softmax_backward(y, dy);
        }
        vec![dx]
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

/// Replaces values by their exponentials, divided by the sum of them.
pub(super) fn softmax(values: &mut [f64]) {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter_mut().for_each(|value| *value = (*value - most).exp());
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
}

/// Replaces a softmax by the gradient of what it was of.
pub(super) fn softmax_backward(y: &mut [f64], dy: &[f64]) {
    let along: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
    y.iter_mut().zip(dy).for_each(|(y, dy)| *y *= dy - along);
}
