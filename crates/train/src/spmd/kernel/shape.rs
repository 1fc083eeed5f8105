//! Sums, and operators that move elements.

use thinwire_model::{Pack, Sum, Summed, Transpose, Unpack};

use super::rows;
use crate::spmd::value::Value;

/// Returns the tensor with its dimensions in another order.
pub fn permuted(x: &Value, order: &[usize]) -> Value {
    if order.windows(2).all(|pair| pair[0] < pair[1]) {
        return x.clone();
    }
    let shape: Vec<usize> = order.iter().map(|dim| x.shape()[*dim]).collect();
    Value::new(&shape, x.view(x.shape()).permuted(order).contiguous())
}

/// Orders dimensions by their letters.
pub fn transpose(transpose: &Transpose, x: &Value) -> Value {
    let place = |letter| transpose.input.chars().position(|l| l == letter);
    permuted(x, &transpose.output.chars().filter_map(place).collect::<Vec<_>>())
}

/// Returns the dimensions that are summed, and then the others.
fn summed_first(sum: &Sum, ndim: usize) -> Vec<usize> {
    let stays = |dim: &usize| sum.dims.get(*dim).is_none_or(|summed| *summed == Summed::No);
    let (kept, summed): (Vec<usize>, Vec<usize>) = (0..ndim).partition(stays);
    [summed, kept].concat()
}

/// Returns the sum over some dimensions.
pub fn sum(sum: &Sum, x: &Value, shape: &[usize]) -> Value {
    let columns = permuted(x, &summed_first(sum, x.shape().len()));
    Value::new(shape, rows::sum_rows(columns.floats(), shape.iter().product()))
}

/// Repeats values along the dimensions of a sum.
pub fn broadcast(sum: &Sum, x: &Value, shape: &[usize]) -> Value {
    let stays = |dim: usize| sum.dims.get(dim).is_none_or(|summed| *summed == Summed::No);
    let kept = |(dim, length): (usize, &usize)| if stays(dim) { *length } else { 1 };
    let once: Vec<usize> = shape.iter().enumerate().map(kept).collect();
    Value::new(shape, x.view(&once).broadcast(shape).contiguous())
}

/// Splits one dimension into sections, each of which becomes a tensor.
pub fn unpack(unpack: &Unpack, x: &Value) -> Vec<Value> {
    let (outer, inner) = around(x.shape(), unpack.dim);
    let whole: usize = unpack.sections.iter().sum();
    let pieces = x.shape()[unpack.dim] / whole;
    let all = x.view(&[outer, pieces, whole, inner]);
    let mut start = 0;
    let part = |length: &usize| {
        let mut shape = x.shape().to_vec();
        shape[unpack.dim] = pieces * length;
        start += length;
        Value::new(&shape, all.clone().narrowed(2, start - length, *length).contiguous())
    };
    unpack.sections.iter().map(part).collect()
}

/// Joins sections of one dimension into a tensor.
pub fn pack(pack: &Pack, inputs: &[&Value]) -> Value {
    let (outer, inner) = around(inputs[0].shape(), pack.dim);
    let pieces = inputs[0].shape()[pack.dim] / pack.sections[0];
    let mut shape = inputs[0].shape().to_vec();
    shape[pack.dim] = pieces * pack.sections.iter().sum::<usize>();
    let mut packed = Vec::with_capacity(shape.iter().product());
    for piece in 0..outer * pieces {
        for (input, length) in inputs.iter().zip(&pack.sections) {
            let width = length * inner;
            packed.extend_from_slice(&input.floats()[piece * width..][..width]);
        }
    }
    Value::new(&shape, packed)
}

/// Returns the number of elements before a dimension and after it.
fn around(shape: &[usize], dim: usize) -> (usize, usize) {
    (shape[..dim].iter().product(), shape[dim + 1..].iter().product())
}
