//! Batch norm, from sums over the whole batch.

use rayon::prelude::*;
use thinwire_model::{Epsilon, Region};

use super::rows;
use crate::spmd::value::Value;

/// Returns images `[b, c, ..]` as planes: the number of channels, and of elements per plane.
fn planes(x: &Value) -> [usize; 2] {
    let (b, c) = (x.shape()[0], x.shape()[1]);
    [c, (x.elements() / (b * c).max(1)).max(1)]
}

/// Returns the sum of every channel `[c]`, from the sum of each plane.
fn by_channel(channels: usize, planes: Vec<f32>) -> Value {
    Value::new(&[channels], rows::sum_rows(&planes, channels))
}

/// Returns the sum and the sum of squares of every channel.
pub fn moments(x: &Value) -> Vec<Value> {
    let [c, plane] = planes(x);
    let planes = x.floats().par_chunks(plane);
    let sums: Vec<[f32; 2]> = planes.map(|x| [crate::vector::sum(x), rows::dot(x, x)]).collect();
    [0, 1].map(|at| by_channel(c, sums.iter().map(|sums| sums[at]).collect())).into()
}

/// Returns the gradient of x; inputs are x, dsum and dsquares.
pub fn moments_backward(inputs: &[&Value]) -> Value {
    let [c, plane] = planes(inputs[0]);
    let [dsum, dsquares] = [1, 2].map(|at| inputs[at].floats());
    inputs[0].clone().edited(|x| {
        x.par_chunks_mut(plane).enumerate().for_each(|(at, x)| {
            let (dsum, dsquares) = (dsum[at % c], 2.0 * dsquares[at % c]);
            x.iter_mut().for_each(|x| *x = *x * dsquares + dsum);
        });
    })
}

/// Mean of a channel, and one over its standard deviation.
type Statistics = (f32, f32);

/// Returns the number of values of a channel, and every channel's statistics.
fn statistics(epsilon: Epsilon, inputs: &[&Value], region: &Region<'_>) -> (f32, Vec<Statistics>) {
    let axes = region.declaration().axes.iter().filter(|axis| axis.name != 'c');
    let count: f32 = axes.map(|axis| axis.length as f32).product();
    let channel = |(sum, squares): (&f32, &f32)| {
        let mean = sum / count;
        let variance = squares / count - mean * mean;
        (mean, 1.0 / (variance + epsilon.value as f32).sqrt())
    };
    (count, inputs[1].floats().iter().zip(inputs[2].floats()).map(channel).collect())
}

/// Normalises to mean zero and variance one, then applies gain and bias.
pub fn batch_norm(epsilon: Epsilon, inputs: &[&Value], region: &Region<'_>) -> Value {
    let [c, plane] = planes(inputs[0]);
    let (_, statistics) = statistics(epsilon, inputs, region);
    let [gain, bias] = [3, 4].map(|at| inputs[at].floats());
    inputs[0].clone().edited(|x| {
        x.par_chunks_mut(plane).enumerate().for_each(|(at, x)| {
            let ((mean, scale), bias) = (statistics[at % c], bias[at % c]);
            let factor = scale * gain[at % c];
            x.iter_mut().for_each(|x| *x = (*x - mean) * factor + bias);
        });
    })
}

/// Returns the gradients of all inputs; inputs are x, sum, squares, gain and dy.
pub fn batch_norm_backward(epsilon: Epsilon, inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let [c, plane] = planes(inputs[0]);
    let (count, statistics) = statistics(epsilon, inputs, region);
    let (x, gain) = (inputs[0].floats(), inputs[3].floats());
    let mut sums = Vec::new();
    let dx = inputs[4].clone().edited(|dy| {
        let planes = dy.par_chunks_mut(plane).zip(x.par_chunks(plane)).enumerate();
        let one = |(at, (dy, x)): (usize, (&mut [f32], &[f32]))| {
            let (mean, scale) = statistics[at % c];
            let (along, total) = (rows::centred_dot(dy, x, mean), crate::vector::sum(dy));
            let factor = gain[at % c] * scale;
            dy.iter_mut().for_each(|dy| *dy *= factor);
            let dvariance = -0.5 * scale * scale * factor * along;
            let dmean = -2.0 * mean * dvariance - factor * total;
            [dmean / count, dvariance / count, along * scale, total]
        };
        sums = planes.map(one).collect::<Vec<[f32; 4]>>();
    });
    let sum = |at: usize| by_channel(c, sums.iter().map(|sums| sums[at]).collect());
    vec![dx, sum(0), sum(1), sum(2), sum(3)]
}
