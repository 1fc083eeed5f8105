//! Kernels as loops over rows, so that one pass replaces many passes of a tensor's operations.
//!
//! Rows are divided among threads. Sums over rows are formed in chunks of a fixed size, in order, so that
//! results do not depend on the number of threads.

use rayon::prelude::*;

use crate::vector::{exp, maximum, sum};

/// Number of elements from which on a separate task pays.
const CHUNK: usize = 1 << 14;

/// Returns the number of rows that have about a chunk's elements.
fn rows_of(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1)
}

/// Applies a function to every element, in place.
pub fn each(values: &mut [f32], function: impl Fn(f32) -> f32 + Sync) {
    values.par_chunks_mut(CHUNK).for_each(|values| {
        values.iter_mut().for_each(|x| *x = function(*x));
    });
}

/// Multiplies `dy` by the slope of the function at `x`, in place.
pub fn each_slope(x: &[f32], dy: &mut [f32], slope: impl Fn(f32) -> f32 + Sync) {
    dy.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(dy, x)| {
        dy.iter_mut().zip(x).for_each(|(dy, x)| *dy *= slope(*x));
    });
}

/// Applies a function to every element and one of `other`, which repeats, in place.
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
        each_row(values, width, |values| combine(values, other));
    }
}

/// Applies a function to every row of `width` values, in place.
pub fn each_row(values: &mut [f32], width: usize, row: impl Fn(&mut [f32]) + Sync) {
    values.par_chunks_mut(rows_of(width) * width.max(1)).for_each(|values| {
        values.chunks_mut(width.max(1)).for_each(&row);
    });
}

/// Returns the sum of all rows of `width` values.
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

/// Returns the sum over the middle dimension of `[.., middle, width]`.
pub fn sum_middle(values: &[f32], middle: usize, width: usize) -> Vec<f32> {
    let groups = values.par_chunks((middle * width).max(1));
    groups.flat_map_iter(|group| sum_rows(group, width)).collect()
}

/// Multiplies scores by a factor and applies a softmax to every row of `width` scores, in place. With
/// `causal` (the position of the first row's query, and the number of queries), a row sees only keys up
/// to its own position.
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

/// Computes the gradients of the scores from the weights and their gradients, times a factor, in place.
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

/// Applies a function to every row of `dy` and the same row of x, in place. Returns the sums to which the
/// function adds.
pub fn each_row_backward<const N: usize>(
    x: &[f32],
    dy: &mut [f32],
    width: usize,
    row: impl Fn(&[f32], &mut [f32], &mut [Vec<f32>; N]) + Sync,
) -> [Vec<f32>; N] {
    let size = rows_of(width) * width.max(1);
    let chunks = dy.par_chunks_mut(size).zip(x.par_chunks(size));
    let sums = chunks.map(|(dy, x)| {
        let mut sums = std::array::from_fn(|_| vec![0.0; width]);
        let rows = dy.chunks_mut(width.max(1)).zip(x.chunks(width.max(1)));
        rows.for_each(|(dy, x)| row(x, dy, &mut sums));
        sums
    });
    total(sums.collect(), width)
}

/// Returns the sum of a function of every value, in eight lanes.
#[inline(always)]
pub fn sum_of(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest: f32 = chunks.remainder().iter().map(|x| term(*x)).sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += term(*x));
    }
    lanes.iter().sum::<f32>() + rest
}

/// Returns the sum of products.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    centred_dot(a, b, 0.0)
}

/// Returns the sum of a times the deviation of b from its mean.
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

/// Adds up sums, in order.
fn total<const N: usize>(sums: Vec<[Vec<f32>; N]>, width: usize) -> [Vec<f32>; N] {
    let mut total = std::array::from_fn(|_| vec![0.0; width]);
    for sums in sums {
        for (total, sums) in total.iter_mut().zip(sums) {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
    }
    total
}

/// Returns, for every row, the logarithm of the sum of exponentials.
pub fn log_sum_exp(values: &[f32], width: usize) -> Vec<f32> {
    let row = |row: &[f32]| {
        let most = maximum(row);
        most + sum_of(row, |x| exp(x - most)).ln()
    };
    values.par_chunks(width.max(1)).with_min_len(rows_of(width)).map(row).collect()
}

/// Replaces every row by the exponentials of its values minus the row's level, times a factor, in place.
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
