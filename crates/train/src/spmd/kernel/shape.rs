//! Sums, and the same elements at other places.

use burn_tensor::Tensor;
use thinwire_model::{Pack, Sum, Summed, Transpose, Unpack};

use crate::spmd::value::Value;

/// The dimensions in another order.
pub fn permuted(x: &Value, order: &[usize]) -> Value {
    if order.windows(2).all(|pair| pair[0] < pair[1]) {
        return x.clone();
    }
    let shape: Vec<usize> = order.iter().map(|dim| x.shape()[*dim]).collect();
    match order.len() {
        2 => Value::of(&shape, turned::<2>(x, order)),
        3 => Value::of(&shape, turned::<3>(x, order)),
        4 => Value::of(&shape, turned::<4>(x, order)),
        5 => Value::of(&shape, turned::<5>(x, order)),
        6 => Value::of(&shape, turned::<6>(x, order)),
        7 => Value::of(&shape, turned::<7>(x, order)),
        ndim => unreachable!("an operator has {ndim} dimensions, at most 7 are declared"),
    }
}

fn turned<const D: usize>(x: &Value, order: &[usize]) -> Tensor<D> {
    let shape: [usize; D] = x.shape().try_into().expect("one length per dimension");
    let order: [usize; D] = order.try_into().expect("one place per dimension");
    x.view(shape).permute(order.map(|dim| dim as isize))
}

/// Dimensions in the order of their letters.
pub fn transpose(transpose: &Transpose, x: &Value) -> Value {
    let place = |letter| transpose.input.chars().position(|l| l == letter);
    permuted(x, &transpose.output.chars().filter_map(place).collect::<Vec<_>>())
}

/// The dimensions that are summed, then those that stay.
fn summed_first(sum: &Sum, ndim: usize) -> (Vec<usize>, usize) {
    let stays = |dim: &usize| sum.dims.get(*dim).is_none_or(|summed| *summed == Summed::No);
    let (kept, summed): (Vec<usize>, Vec<usize>) = (0..ndim).partition(stays);
    let count = summed.len();
    ([summed, kept].concat(), count)
}

/// The sum over some dimensions.
pub fn sum(sum: &Sum, x: &Value, shape: &[usize]) -> Value {
    let (order, _) = summed_first(sum, x.shape().len());
    let kept: usize = shape.iter().product();
    if order.windows(2).all(|pair| pair[0] < pair[1]) {
        // A product with ones reads it where it lies, whoever else holds it.
        let rows = x.elements() / kept.max(1);
        let ones = Tensor::<2>::ones([1, rows], &x.device());
        return Value::of(shape, ones.matmul(x.view([rows, kept])));
    }
    let columns = permuted(x, &order).view([x.elements() / kept.max(1), kept]);
    Value::of(shape, columns.sum_dim(0))
}

/// The same values along the dimensions of a sum.
pub fn broadcast(sum: &Sum, x: &Value, shape: &[usize]) -> Value {
    let (order, _) = summed_first(sum, shape.len());
    let (all, kept) = (shape.iter().product::<usize>(), x.elements());
    let rows = x.view([1, kept]).expand([all / kept.max(1), kept]);
    let turned: Vec<usize> = order.iter().map(|dim| shape[*dim]).collect();
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, dim)| back[*dim] = at);
    permuted(&Value::of(&turned, rows), &back).reshaped(shape)
}

/// A dimension taken apart.
pub fn unpack(unpack: &Unpack, x: &Value) -> Vec<Value> {
    let (outer, inner) = around(x.shape(), unpack.dim);
    let whole: usize = unpack.sections.iter().sum();
    let pieces = x.shape()[unpack.dim] / whole;
    let all = x.view([outer, pieces, whole, inner]);
    let mut start = 0;
    let part = |length: &usize| {
        let mut shape = x.shape().to_vec();
        shape[unpack.dim] = pieces * length;
        start += length;
        Value::of(&shape, all.clone().narrow(2, start - length, *length))
    };
    unpack.sections.iter().map(part).collect()
}

/// A dimension put together.
pub fn pack(pack: &Pack, inputs: &[&Value]) -> Value {
    let (outer, inner) = around(inputs[0].shape(), pack.dim);
    let pieces = inputs[0].shape()[pack.dim] / pack.sections[0];
    let parts = inputs.iter().zip(&pack.sections);
    let parts = parts.map(|(input, length)| input.view([outer, pieces, *length, inner]));
    let mut shape = inputs[0].shape().to_vec();
    shape[pack.dim] = pieces * pack.sections.iter().sum::<usize>();
    Value::of(&shape, Tensor::cat(parts.collect(), 2))
}

/// The elements before a dimension and those after it.
fn around(shape: &[usize], dim: usize) -> (usize, usize) {
    (shape[..dim].iter().product(), shape[dim + 1..].iter().product())
}
