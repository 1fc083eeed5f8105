//! RMS norm: `x[..,n] gain[n] -> y[..,n]`.
//!
//! Zhang, Sennrich, "Root Mean Square Layer Normalization": as layer norm, without the mean.

use serde::{Deserialize, Serialize};

use super::layer_norm::tokens;
use super::operand::inputs;
use super::{Epsilon, Rule};
use crate::{Array, Declaration, Error, Region};

/// Mean square one within a token; inputs x, gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm(pub Epsilon);

/// The gradients of x and gain; inputs x, gain, dy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RmsNormBackward(pub RmsNorm);

impl Rule for RmsNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        self.0.check()?;
        let [x, _] = inputs(shapes)?;
        tokens(x, &[("x", true), ("gain", false)], &[("y", true)], 4.0)
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let (x, gain) = (inputs[0], inputs[1].values());
        let mut y = x.clone();
        for token in y.values_mut().chunks_mut(gain.len()) {
            normalise(token, self.0);
            token.iter_mut().zip(gain).for_each(|(value, gain)| *value *= gain);
        }
        vec![y]
    }
}

impl Rule for RmsNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        let outputs = [("dx", true), ("dgain", false)];
        tokens(x, &[("x", true), ("gain", false), ("dy", true)], &outputs, 10.0)
    }

    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let (x, gain, dy) = (inputs[0], inputs[1].values(), inputs[2]);
        let count = gain.len();
        let mut dx = x.clone();
        let mut dgain = Array::full(region.output_shape(1), 0.0);
        for (token, dy) in dx.values_mut().chunks_mut(count).zip(dy.values().chunks(count)) {
            let root = normalise(token, self.0.0);
            for (total, (dy, value)) in dgain.values_mut().iter_mut().zip(dy.iter().zip(&*token)) {
                *total += dy * value;
            }
            // The part of the scaled gradient that would move the mean square is lost.
            let scaled: Vec<f64> = dy.iter().zip(gain).map(|(dy, gain)| dy * gain).collect();
            let along = scaled.iter().zip(&*token).map(|(a, b)| a * b).sum::<f64>() / count as f64;
            for (value, scaled) in token.iter_mut().zip(scaled) {
                *value = (scaled - *value * along) / root;
            }
        }
        vec![dx, dgain]
    }
}

/// Makes a token's mean square one, and gives the root that it had.
fn normalise(token: &mut [f64], epsilon: Epsilon) -> f64 {
    let square = token.iter().map(|value| value * value).sum::<f64>() / token.len() as f64;
    let root = (square + epsilon.value).sqrt();
    token.iter_mut().for_each(|value| *value /= root);
    root
}
