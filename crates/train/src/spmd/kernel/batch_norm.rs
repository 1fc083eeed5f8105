//! Batch norm, from sums over the whole batch.

use burn_tensor::Tensor;
use thinwire_model::{Epsilon, Region};

use crate::spmd::value::Value;

/// Images as `[b, c, rest]`.
fn planes(x: &Value) -> Tensor<3> {
    let (b, c) = (x.shape()[0], x.shape()[1]);
    x.view([b, c, x.elements() / (b * c).max(1)])
}

/// One number per channel, along planes.
fn channels(x: &Value) -> Tensor<3> {
    x.view([1, x.elements(), 1])
}

/// The sum of every channel.
fn sum(x: Tensor<3>) -> Value {
    let [_, c, _] = x.dims();
    Value::of(&[c], x.sum_dim(2).sum_dim(0))
}

/// Sums and squares of every channel.
pub fn moments(x: &Value) -> Vec<Value> {
    let x = planes(x);
    vec![sum(x.clone()), sum(x.clone() * x)]
}

/// The gradient of x, from x, dsum, dsquares.
pub fn moments_backward(inputs: &[&Value]) -> Value {
    let [dsum, dsquares] = [1, 2].map(|at| channels(inputs[at]));
    Value::of(inputs[0].shape(), planes(inputs[0]) * dsquares.mul_scalar(2.0) + dsum)
}

/// How many values a channel has, their mean, and one over their deviation.
fn statistics(
    epsilon: Epsilon,
    inputs: &[&Value],
    region: &Region<'_>,
) -> (f32, Tensor<3>, Tensor<3>) {
    let axes = region.declaration().axes.iter().filter(|axis| axis.name != 'c');
    let count = axes.map(|axis| axis.length as f32).product();
    let [mean, square] = [1, 2].map(|at| channels(inputs[at]).div_scalar(count));
    let variance = square - mean.clone() * mean.clone();
    (count, mean, variance.add_scalar(epsilon.value).sqrt().recip())
}

/// Mean zero and variance one, then gain and bias.
pub fn batch_norm(epsilon: Epsilon, inputs: &[&Value], region: &Region<'_>) -> Value {
    let (_, mean, scale) = statistics(epsilon, inputs, region);
    let [gain, bias] = [3, 4].map(|at| channels(inputs[at]));
    Value::of(inputs[0].shape(), (planes(inputs[0]) - mean) * (scale * gain) + bias)
}

/// The gradients of all inputs, from x, sum, squares, gain, dy.
pub fn batch_norm_backward(epsilon: Epsilon, inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let (count, mean, scale) = statistics(epsilon, inputs, region);
    let (gain, dy) = (channels(inputs[3]), planes(inputs[4]));
    let centred = planes(inputs[0]) - mean.clone();
    let dx = dy.clone() * (gain * scale.clone());
    let square = scale.clone() * scale.clone();
    let dvariance = (dx.clone() * centred.clone() * square).mul_scalar(-0.5);
    let dmean = (dvariance.clone() * mean.mul_scalar(-2.0)) - dx.clone();
    let dgain = dy.clone() * centred * scale;
    let sums = [dmean.div_scalar(count), dvariance.div_scalar(count), dgain, dy].map(sum);
    std::iter::once(Value::of(inputs[0].shape(), dx)).chain(sums).collect()
}
