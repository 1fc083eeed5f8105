//! Norms of a token's features.

use thinwire_model::Epsilon;

use super::operands::operands;
use super::rows::{centred_dot, dot, each_row, each_row_backward, sum_of};
use crate::spmd::value::Value;
use crate::vector::sum;

/// Normalises to mean zero and variance one, then applies gain and bias.
pub fn layer_norm(epsilon: Epsilon, inputs: Vec<Value>) -> Value {
    let [x, gain, bias] = operands(inputs);
    let (gain, bias) = (gain.floats(), bias.floats());
    let norm = |row: &mut [f32]| {
        let Moments { mean, scale } = moments(row, epsilon);
        for ((value, gain), bias) in row.iter_mut().zip(gain).zip(bias) {
            *value = (*value - mean) * scale * gain + bias;
        }
    };
    x.edited(|x| each_row(x, gain.len(), norm))
}

/// Returns the gradients of x, gain and bias.
pub fn layer_norm_backward(epsilon: Epsilon, inputs: Vec<Value>) -> Vec<Value> {
    backward(inputs, |x, gain, dy, sums| {
        norm_row_backward(x, &moments(x, epsilon), gain, dy, sums);
    })
}

/// Computes one row of these gradients.
fn norm_row_backward(
    x: &[f32],
    moments: &Moments,
    gain: &[f32],
    dy: &mut [f32],
    [dgain, dbias]: &mut [Vec<f32>; 2],
) {
    let Moments { mean, scale } = *moments;
    let sums = dgain.iter_mut().zip(dbias.iter_mut());
    for (((dy, x), gain), (dgain, dbias)) in dy.iter_mut().zip(x).zip(gain).zip(sums) {
        *dgain += *dy * (x - mean) * scale;
        *dbias += *dy;
        *dy *= gain;
    }
    let n = x.len() as f32;
    let (level, slope) = (sum(dy) / n, centred_dot(dy, x, mean) * scale / n);
    for (dy, x) in dy.iter_mut().zip(x) {
        *dy = (*dy - level - (x - mean) * scale * slope) * scale;
    }
}

/// The mean of a row, and one over its standard deviation.
struct Moments {
    mean: f32,
    scale: f32,
}

fn moments(row: &[f32], epsilon: Epsilon) -> Moments {
    let n = row.len() as f32;
    let mean = sum(row) / n;
    let variance = sum_of(row, |x| (x - mean) * (x - mean)) / n;
    Moments { mean, scale: 1.0 / (variance + epsilon.value as f32).sqrt() }
}

/// Normalises to mean square one, then applies the gain.
pub fn rms_norm(epsilon: Epsilon, inputs: Vec<Value>) -> Value {
    let [x, gain] = operands(inputs);
    let gain = gain.floats();
    let norm = |row: &mut [f32]| {
        let scale = inverse_root(row, epsilon);
        row.iter_mut().zip(gain).for_each(|(value, gain)| *value *= scale * gain);
    };
    x.edited(|x| each_row(x, gain.len(), norm))
}

/// Returns the gradients of x and gain.
pub fn rms_norm_backward(epsilon: Epsilon, inputs: Vec<Value>) -> Vec<Value> {
    backward(inputs, |x, gain, dy, [dgain]| {
        let scale = inverse_root(x, epsilon);
        for (((dy, x), gain), dgain) in dy.iter_mut().zip(x).zip(gain).zip(dgain) {
            *dgain += *dy * x * scale;
            *dy *= gain;
        }
        let along = dot(dy, x) * scale * scale / gain.len() as f32;
        dy.iter_mut().zip(x).for_each(|(dy, x)| *dy = (*dy - x * along) * scale);
    })
}

/// Returns one over the root of a row's mean square.
fn inverse_root(row: &[f32], epsilon: Epsilon) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + epsilon.value as f32).sqrt()
}

/// Returns the gradients of x, in place of dy, and of the vectors to which a function of rows adds.
fn backward<const N: usize>(
    inputs: Vec<Value>,
    row: impl Fn(&[f32], &[f32], &mut [f32], &mut [Vec<f32>; N]) + Sync,
) -> Vec<Value> {
    let [x, gain, dy] = operands(inputs);
    let (x, gain) = (x.floats(), gain.floats());
    let mut sums = None;
    let one = |x: &[f32], dy: &mut [f32], sums: &mut [Vec<f32>; N]| row(x, gain, dy, sums);
    let dx = dy.edited(|dy| sums = Some(each_row_backward(x, dy, gain.len(), one)));
    let vectors = sums.into_iter().flatten().map(|values| Value::new(&[gain.len()], values));
    std::iter::once(dx).chain(vectors).collect()
}
