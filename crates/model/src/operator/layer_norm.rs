//! Layer norm: `x[..,n] gain[n] bias[n] -> y[..,n]`.
//!
//! Ba, Kiros, Hinton, "Layer Normalization": mean and variance are those of a token's features, so
//! the axis n stays whole.

use serde::{Deserialize, Serialize};

use super::operand::{inputs, split_last};
use super::{Epsilon, Rule};
use crate::{Array, Axes, Declaration, Error, Operand, Region};

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

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, gain, bias) = (inputs[0], inputs[1].values(), inputs[2].values());
        let mut y = x.clone();
        for token in y.values_mut().chunks_mut(gain.len()) {
            normalise(token, self.0);
            for (value, (gain, bias)) in token.iter_mut().zip(gain.iter().zip(bias)) {
                *value = *value * gain + bias;
            }
        }
        vec![y]
    }
}

impl Rule for LayerNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        let outputs = [("dx", true), ("dgain", false), ("dbias", false)];
        tokens(x, &[("x", true), ("gain", false), ("dy", true)], &outputs, 14.0)
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, gain, dy) = (inputs[0], inputs[1].values(), inputs[2]);
        let count = gain.len();
        let mut dx = x.clone();
        let mut dgain = Array::full(region.output_shape(1), 0.0);
        let mut dbias = dgain.clone();
        for (token, dy) in dx.values_mut().chunks_mut(count).zip(dy.values().chunks(count)) {
            let deviation = normalise(token, self.0.0);
            for n in 0..count {
                dgain.values_mut()[n] += dy[n] * token[n];
                dbias.values_mut()[n] += dy[n];
            }
            // The part of the scaled gradient that would move the mean or the variance is lost.
            let scaled: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
            let mean = scaled.iter().sum::<f64>() / count as f64;
            let along = scaled.iter().zip(&*token).map(|(a, b)| a * b).sum::<f64>() / count as f64;
            for (value, scaled) in token.iter_mut().zip(scaled) {
                *value = (scaled - mean - *value * along) / deviation;
            }
        }
        vec![dx, dgain, dbias]
    }
}

/// Makes a token's mean zero and its variance one, and gives the deviation that it had.
fn normalise(token: &mut [f64], epsilon: Epsilon) -> f64 {
    let count = token.len() as f64;
    let mean = token.iter().sum::<f64>() / count;
    let variance = token.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let deviation = (variance + epsilon.value).sqrt();
    token.iter_mut().for_each(|value| *value = (*value - mean) / deviation);
    deviation
}
