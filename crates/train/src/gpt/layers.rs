//! The arithmetic of a transformer on Burn tensors.
//!
//! Activations are `[rows, width]` with `rows = batch * context`, because one large matrix product
//! is faster than a batch of small ones, and its weight gradient is one product too.
//!
//! GELU and softmax come from our own kernels, which autodiff does not know. It is told their
//! derivative by a tangent: `x * slope + (value - x * slope)`, with `slope` and the bracket as
//! constants, has the kernel's value and, differentiated, its slope.

use burn_tensor::activation::log_softmax;
use burn_tensor::module::layer_norm as fused_layer_norm;
use burn_tensor::{Int, Tensor, TensorData};
use rayon::prelude::*;

use super::kernel;

const EPSILON: f64 = 1e-5;
/// Elements that are worth a task of their own.
const CHUNK: usize = 1 << 14;

/// Rows of `table[256, width]` by token, plus rows of `positions[context, width]`.
pub fn embed(table: Tensor<2>, positions: Tensor<2>, tokens: Tensor<1, Int>) -> Tensor<2> {
    let [context, width] = positions.dims();
    let [rows] = tokens.dims();
    let embedded = table.select(0, tokens).reshape([rows / context, context, width]);
    (embedded + positions.unsqueeze()).reshape([rows, width])
}

/// `(x - mean) / deviation * gain + bias` along each row.
pub fn layer_norm(x: Tensor<2>, gain: Tensor<1>, bias: Tensor<1>) -> Tensor<2> {
    if !x.is_tracked() {
        return fused_layer_norm(x, gain, Some(bias), EPSILON);
    }
    let centred = x.clone() - x.mean_dim(1);
    let variance = (centred.clone() * centred.clone()).mean_dim(1);
    let scale = variance.add_scalar(EPSILON).sqrt().recip();
    centred * scale * gain.unsqueeze() + bias.unsqueeze()
}

/// `x Phi(x)`.
pub fn gelu(x: Tensor<2>) -> Tensor<2> {
    let (shape, device) = (x.dims(), x.device());
    let mut value = x.clone().inner().into_data();
    let slice = value.as_mut_slice::<f32>().expect(FLOATS);
    let mut slope = vec![0.0; slice.len()];
    let chunks = slice.par_chunks_mut(CHUNK).zip(slope.par_chunks_mut(CHUNK));
    chunks.for_each(|(values, slopes)| kernel::gelu(values, slopes));
    let value = Tensor::from_data(value, &device);
    if x.is_tracked() {
        tangent(x, value, Tensor::from_data(TensorData::new(slope, shape), &device))
    } else {
        value
    }
}

/// Causal attention of `heads` heads over rows of `context` positions; query, key and value are
/// `[rows, width]`.
pub fn attention([query, key, value]: [Tensor<2>; 3], context: usize, heads: usize) -> Tensor<2> {
    let [rows, width] = query.dims();
    let size = width / heads;
    let split = |x: Tensor<2>| x.reshape([rows / context, context, heads, size]).swap_dims(1, 2);
    let scores = split(query).matmul(split(key).swap_dims(2, 3));
    let weights = causal_softmax(scores, context, (size as f32).powf(-0.5));
    weights.matmul(split(value)).swap_dims(1, 2).reshape([rows, width])
}

/// With `p` the probabilities, `dp = scale * p * (ds - sum(p * ds))`.
fn causal_softmax(scores: Tensor<4>, context: usize, scale: f32) -> Tensor<4> {
    let mut p = scores.clone().inner().into_data();
    let squares = p.as_mut_slice::<f32>().expect(FLOATS).par_chunks_mut(context * context);
    squares.for_each(|scores| kernel::causal_softmax(scores, context, scale));
    let p = Tensor::from_data(p, &scores.device());
    if !scores.is_tracked() {
        return p;
    }
    let mean = (scores.clone() * p.clone()).sum_dim(3);
    let slope = p.clone().mul_scalar(scale);
    tangent(scores - mean, p, slope)
}

/// Something with this value whose derivative by `x` is `slope`.
fn tangent<const D: usize>(x: Tensor<D>, value: Tensor<D>, slope: Tensor<D>) -> Tensor<D> {
    let rest = value - x.clone().inner() * slope.clone();
    x * slope + rest
}

const FLOATS: &str = "activations are f32";

/// The mean over rows of `-log softmax(logits)[target]`.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    log_softmax(logits, 1).gather(1, targets.unsqueeze_dim(1)).mean().neg()
}
