//! Arithmetic, scaling, dropout and constants, element by element.

use burn_tensor::{Device, Tensor};
use rayon::prelude::*;
use thinwire_model::{Arithmetic, Dropout, Region};
use thinwire_wire::random::Key;

use super::operands;
use crate::spmd::value::Value;

/// x and y, which may be broadcast.
pub fn arithmetic(operation: Arithmetic, inputs: Vec<Value>) -> Value {
    let [x, y] = operands(inputs);
    let result = match (x.shape() == y.shape(), x.shape().len()) {
        (true, _) | (_, 0..=1) => return x.mapped(|x| of(operation, x, y.into_flat())),
        (_, 2) => broadcast::<2>(operation, &x, &y),
        (_, 3) => broadcast::<3>(operation, &x, &y),
        (_, 4) => broadcast::<4>(operation, &x, &y),
        (_, 5) => broadcast::<5>(operation, &x, &y),
        (_, 6) => broadcast::<6>(operation, &x, &y),
        _ => broadcast::<7>(operation, &x, &y),
    };
    Value::of(x.shape(), result)
}

fn broadcast<const D: usize>(operation: Arithmetic, x: &Value, y: &Value) -> Tensor<1> {
    let whole: [usize; D] = x.shape().try_into().expect("at most 7 dimensions are declared");
    let mut smaller = [1; D];
    smaller[D - y.shape().len()..].copy_from_slice(y.shape());
    of(operation, x.view(whole), y.view(smaller).expand(whole)).reshape([x.elements()])
}

fn of<const D: usize>(operation: Arithmetic, x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    match operation {
        Arithmetic::Add => x + y,
        Arithmetic::Subtract => x - y,
        Arithmetic::Multiply => x * y,
        Arithmetic::Divide => x / y,
    }
}

/// Every element times a number.
pub fn scale(factor: f64, inputs: Vec<Value>) -> Value {
    let [x] = operands(inputs);
    x.mapped(|x| x.mul_scalar(factor))
}

/// The same number everywhere.
pub fn fill(value: f64, shape: &[usize], device: &Device) -> Value {
    Value::new(shape, vec![value as f32; shape.iter().product()], device)
}

/// Some elements zero, by their places in the whole tensor.
pub fn dropout(dropout: &Dropout, inputs: Vec<Value>, region: &Region<'_>) -> Value {
    let [x] = operands(inputs);
    let key = Key { tensor: dropout.stream, ..region.key() };
    let parts = region.output(0);
    let whole = region.declaration().shape(&region.declaration().outputs[0]);
    let row = x.rows()[1].max(1);
    let (rate, scale) = (dropout.rate, (1.0 / (1.0 - dropout.rate)) as f32);
    let drop = |values: &mut [f32]| {
        values.par_chunks_mut(row).enumerate().for_each(|(at, values)| {
            // Where the row begins in the whole tensor.
            let (mut rest, mut first, mut stride) = (at * row, 0, 1);
            for (part, whole) in parts.iter().zip(&whole).rev() {
                first += (rest % part.length + part.start) * stride;
                rest /= part.length;
                stride *= whole;
            }
            for (value, element) in values.iter_mut().zip(first as u64..) {
                let stays = f64::from(key.uniform(element)) >= rate;
                *value = if stays { *value * scale } else { 0.0 };
            }
        })
    };
    x.edited(drop)
}
