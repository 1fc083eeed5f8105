//! Kernels as loops over rows: what would be many passes of a tensor's operations is one.
//!
//! Rows are shared out among threads; what is summed over rows is summed in chunks of a fixed size,
//! in their order, so that results do not depend on the number of threads.

use rayon::prelude::*;

use crate::vector::{exp, maximum, sum};

/// Elements that are worth a task of their own.
const CHUNK: usize = 1 << 14;
/// √(2/π) and the factor of the cube, in GELU's approximation by tanh.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// Rows of about a chunk's elements.
fn rows_of(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}

/// Every element's function, in place.
pub fn each(values: &mut [f32], function: impl Fn(f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).for_each(|values| {
        values.iter_mut().for_each(|x| *x = function(*x));
    });
}

/// `dy`, times the slope at x, in place.
pub fn each_slope(x: &[f32], dy: &mut [f32], slope: impl Fn(f32) -> f32 + Sync) {
    dy.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(dy, x)| {
        dy.iter_mut().zip(x).for_each(|(dy, x)| *dy *= slope(*x));
    });
}

/// Every element's function with one of `other`, which repeats, in place.
///
/// # Panics
/// If `other` does not divide the values.
pub fn with_repeated(values: &mut [f32], other: &[f32], function: impl Fn(f32, f32) -> f32 + Sync) {
    let width = other.len().max(1);
    assert!(values.len().is_multiple_of(width), "{} values of {width}", values.len());
    let combine = |values: &mut [f32], other: &[f32]| {
        values.iter_mut().zip(other).for_each(|(x, y)| *x = function(*x, *y));
    };
    if width >= CHUNK {
        for values in values.chunks_mut(width) {
            let chunks = values.par_chunks_mut(CHUNK).zip(other.par_chunks(CHUNK));
            chunks.for_each(|(values, other)| combine(values, other));
        }
    } else {
        values.par_chunks_mut(rows_of(width) * width).for_each(|values| {
            values.chunks_mut(width).for_each(|values| combine(values, other));
        });
    }
}

/// The sum of all rows of `width` values.
pub fn sum_rows(values: &[f32], width: usize) -> Vec<f32> {
    let add = |mut sums: Vec<f32>, row: &[f32]| {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        sums
    };
    let chunks = values.par_chunks(rows_of(width) * width.max(1));
    let sums = chunks.map(|rows| [rows.chunks(width.max(1)).fold(vec![0.0; width], add)]);
    let [total] = total(sums.collect(), width);
    total
}

/// The sum over the middle of `[.., middle, width]`.
pub fn sum_middle(values: &[f32], middle: usize, width: usize) -> Vec<f32> {
    let groups = values.par_chunks((middle * width).max(1));
    groups.flat_map_iter(|group| sum_rows(group, width)).collect()
}

/// Values that are positive or no number, zero for the others, in place.
pub fn relu(values: &mut [f32]) {
    each(values, |x| if x < 0.0 { 0.0 } else { x });
}

/// The hyperbolic tangent, in place.
pub fn tanh(values: &mut [f32]) {
    each(values, f32::tanh);
}

/// `dy`, times the hyperbolic tangent's slope at x, in place.
pub fn tanh_backward(x: &[f32], dy: &mut [f32]) {
    each_slope(x, dy, |x| {
        let y = x.tanh();
        1.0 - y * y
    });
}

/// GELU by tanh, in place.
pub fn gelu(values: &mut [f32]) {
    each(values, |x| x * sigmoid(twice_inner(x)));
}

/// `dy`, times GELU's slope at x, in place.
pub fn gelu_backward(x: &[f32], dy: &mut [f32]) {
    each_slope(x, dy, |x| {
        let s = sigmoid(twice_inner(x));
        let steep = 2.0 * GELU[0] * (1.0 + 3.0 * GELU[1] * x * x);
        s + x * s * (1.0 - s) * steep
    });
}

/// SiLU, in place.
pub fn silu(values: &mut [f32]) {
    each(values, |x| x * sigmoid(x));
}

/// `dy`, times SiLU's slope at x, in place.
pub fn silu_backward(x: &[f32], dy: &mut [f32]) {
    each_slope(x, dy, |x| {
        let s = sigmoid(x);
        s * (1.0 + x * (1.0 - s))
    });
}

/// The sigmoid, in place.
pub fn sigmoids(values: &mut [f32]) {
    each(values, sigmoid);
}

/// `dy`, times the sigmoid's slope at x, in place.
pub fn sigmoids_backward(x: &[f32], dy: &mut [f32]) {
    each_slope(x, dy, |x| {
        let s = sigmoid(x);
        s * (1.0 - s)
    });
}

/// `dy` where x is positive, in place.
pub fn relu_backward(x: &[f32], dy: &mut [f32]) {
    each_slope(x, dy, |x| f32::from(u8::from(x > 0.0)));
}

/// Twice what GELU takes the tanh of: (1 + tanh u) / 2 is the sigmoid of 2u.
#[inline(always)]
fn twice_inner(x: f32) -> f32 {
    2.0 * GELU[0] * x * (1.0 + GELU[1] * x * x)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let above = 1.0 / (1.0 + e);
    if x < 0.0 { e * above } else { above }
}

/// A softmax of every row of `width` scores times a factor, in place. A row of `causal` (the place
/// of the first row's query, and how many queries there are) sees keys up to its own place.
pub fn softmax(scores: &mut [f32], width: usize, factor: f32, causal: Option<(usize, usize)>) {
    let rows = rows_of(width);
    scores.par_chunks_mut(rows * width.max(1)).enumerate().for_each(|(chunk, scores)| {
        for (at, row) in scores.chunks_mut(width.max(1)).enumerate() {
            let seen = causal.map_or(width, |(first, queries)| {
                (first + (chunk * rows + at) % queries + 1).min(width)
            });
            let (seen, hidden) = row.split_at_mut(seen);
            let most = maximum(seen);
            seen.iter_mut().for_each(|score| *score = exp((*score - most) * factor));
            let inverse = 1.0 / sum(seen);
            seen.iter_mut().for_each(|weight| *weight *= inverse);
            hidden.fill(0.0);
        }
    });
}

/// From the weights and their gradients those of the scores, times a factor, in place.
pub fn softmax_backward(weights: &[f32], gradients: &mut [f32], width: usize, factor: f32) {
    let size = rows_of(width) * width.max(1);
    gradients.par_chunks_mut(size).zip(weights.par_chunks(size)).for_each(
        |(gradients, weights)| {
            let rows = gradients.chunks_mut(width.max(1)).zip(weights.chunks(width.max(1)));
            for (gradients, weights) in rows {
                let along = dot(gradients, weights);
                for (gradient, weight) in gradients.iter_mut().zip(weights) {
                    *gradient = weight * (*gradient - along) * factor;
                }
            }
        },
    );
}

/// Rows of mean zero and variance one, times gain, plus bias, in place.
pub fn layer_norm(values: &mut [f32], gain: &[f32], bias: &[f32], epsilon: f32) {
    let width = gain.len().max(1);
    values.par_chunks_mut(rows_of(width) * width).for_each(|values| {
        for row in values.chunks_mut(width) {
            let (mean, scale) = moments(row, epsilon);
            for ((value, gain), bias) in row.iter_mut().zip(gain).zip(bias) {
                *value = (*value - mean) * scale * gain + bias;
            }
        }
    });
}

/// The gradients of x, in the place of dy, and of gain and bias.
pub fn layer_norm_backward(x: &[f32], gain: &[f32], dy: &mut [f32], epsilon: f32) -> [Vec<f32>; 2] {
    let width = gain.len().max(1);
    let size = rows_of(width) * width;
    let chunks = dy.par_chunks_mut(size).zip(x.par_chunks(size));
    let sums: Vec<[Vec<f32>; 2]> = chunks
        .map(|(dy, x)| {
            let mut sums = [vec![0.0; gain.len()], vec![0.0; gain.len()]];
            let rows = dy.chunks_mut(width).zip(x.chunks(width));
            rows.for_each(|(dy, x)| {
                norm_row_backward((x, moments(x, epsilon)), gain, dy, &mut sums);
            });
            sums
        })
        .collect();
    total(sums, gain.len())
}

/// One row of it, with its mean and one over its deviation.
fn norm_row_backward(
    (x, (mean, scale)): (&[f32], (f32, f32)),
    gain: &[f32],
    dy: &mut [f32],
    [dgain, dbias]: &mut [Vec<f32>; 2],
) {
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

/// The mean of a row, and one over its deviation.
fn moments(row: &[f32], epsilon: f32) -> (f32, f32) {
    let n = row.len() as f32;
    let mean = sum(row) / n;
    let mut lanes = [0.0; 8];
    let chunks = row.chunks_exact(8);
    let rest: f32 = chunks.remainder().iter().map(|x| (x - mean) * (x - mean)).sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += (x - mean) * (x - mean));
    }
    let variance = (lanes.iter().sum::<f32>() + rest) / n;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

/// The sum of products.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    centred_dot(a, b, 0.0)
}

/// The sum of a times what b is beyond its mean.
pub fn centred_dot(a: &[f32], b: &[f32], mean: f32) -> f32 {
    let mut lanes = [0.0; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest = left.remainder().iter().zip(right.remainder());
    let rest: f32 = rest.map(|(a, b)| a * (b - mean)).sum();
    for (a, b) in left.zip(right) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * (b - mean);
        }
    }
    lanes.iter().sum::<f32>() + rest
}

/// Rows of mean square one, times gain, in place.
pub fn rms_norm(values: &mut [f32], gain: &[f32], epsilon: f32) {
    let width = gain.len().max(1);
    values.par_chunks_mut(rows_of(width) * width).for_each(|values| {
        for row in values.chunks_mut(width) {
            let scale = inverse_root(row, epsilon);
            row.iter_mut().zip(gain).for_each(|(value, gain)| *value *= scale * gain);
        }
    });
}

/// The gradients of x, in the place of dy, and of gain.
pub fn rms_norm_backward(x: &[f32], gain: &[f32], dy: &mut [f32], epsilon: f32) -> Vec<f32> {
    let width = gain.len().max(1);
    let size = rows_of(width) * width;
    let chunks = dy.par_chunks_mut(size).zip(x.par_chunks(size));
    let sums: Vec<[Vec<f32>; 1]> = chunks
        .map(|(dy, x)| {
            let mut dgain = vec![0.0; gain.len()];
            for (dy, x) in dy.chunks_mut(width).zip(x.chunks(width)) {
                let scale = inverse_root(x, epsilon);
                for (((dy, x), gain), dgain) in dy.iter_mut().zip(x).zip(gain).zip(&mut dgain) {
                    *dgain += *dy * x * scale;
                    *dy *= gain;
                }
                let along = dot(dy, x) * scale * scale / width as f32;
                dy.iter_mut().zip(x).for_each(|(dy, x)| *dy = (*dy - x * along) * scale);
            }
            [dgain]
        })
        .collect();
    let [dgain] = total(sums, gain.len());
    dgain
}

/// One over the root of a row's mean square.
fn inverse_root(row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt()
}

/// A vector added to every row, in place.
pub fn add_to_rows(values: &mut [f32], bias: &[f32]) {
    let width = bias.len().max(1);
    values.par_chunks_mut(rows_of(width) * width).for_each(|values| {
        for row in values.chunks_mut(width) {
            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    });
}

/// Sums of sums, in their order.
fn total<const N: usize>(sums: Vec<[Vec<f32>; N]>, width: usize) -> [Vec<f32>; N] {
    let mut total = std::array::from_fn(|_| vec![0.0; width]);
    for sums in sums {
        for (total, sums) in total.iter_mut().zip(sums) {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
    }
    total
}

/// For every row the logarithm of the sum of exponentials.
pub fn log_sum_exp(values: &[f32], width: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let most = maximum(row);
        let mut lanes = [0.0; 8];
        let chunks = row.chunks_exact(8);
        let rest: f32 = chunks.remainder().iter().map(|x| exp(x - most)).sum();
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += exp(x - most));
        }
        most + (lanes.iter().sum::<f32>() + rest).ln()
    };
    values.par_chunks(width.max(1)).with_min_len(rows_of(width)).map(row).collect()
}

/// Exponentials of what every row is beyond its level, times a factor, in place.
pub fn exponentials(values: &mut [f32], width: usize, levels: &[f32], factors: &[f32]) {
    let rows = values.par_chunks_mut(width.max(1)).with_min_len(rows_of(width));
    rows.zip(levels).zip(factors).for_each(|((row, level), factor)| {
        for value in row {
            let beyond = *value - level;
            let small = exp(-beyond.abs());
            *value = if beyond > 0.0 { 1.0 / small } else { small } * factor;
        }
    });
}
