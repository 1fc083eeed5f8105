//! Arithmetic, scaling, dropout and constants, element by element.

use rayon::prelude::*;
use thinwire_model::{Arithmetic, Constant, Dropout, Part, Region};
use thinwire_wire::random::Key;

use super::operands::operands;
use super::rows;
use crate::spmd::start::part;
use crate::spmd::value::Value;

/// Applies an operation to x and y, which may be broadcast.
pub fn arithmetic(operation: Arithmetic, inputs: Vec<Value>) -> Value {
    let [x, y] = operands(inputs);
    let shape = x.shape().to_vec();
    // A row, or all of x but its first dimensions, repeats as it lies.
    let y = if shape.ends_with(y.shape()) {
        y
    } else {
        Value::new(&shape, y.view(y.shape()).broadcast(&shape).contiguous())
    };
    let y = y.floats();
    x.edited(|x| match operation {
        Arithmetic::Add => rows::with_repeated(x, y, |x, y| x + y),
        Arithmetic::Subtract => rows::with_repeated(x, y, |x, y| x - y),
        Arithmetic::Multiply => rows::with_repeated(x, y, |x, y| x * y),
        Arithmetic::Divide => rows::with_repeated(x, y, |x, y| x / y),
    })
}

/// Multiplies every element by a number.
pub fn scale(factor: f64, inputs: Vec<Value>) -> Value {
    let [x] = operands(inputs);
    x.edited(|x| rows::each(x, |x| x * factor as f32))
}

/// Returns a tensor of one number.
pub fn fill(value: f64, shape: &[usize]) -> Value {
    Value::new(shape, vec![value as f32; shape.iter().product()])
}

/// Returns a part of a constant.
pub fn constant(constant: &Constant, parts: &[Part]) -> Value {
    let shape: Vec<usize> = parts.iter().map(|part| part.length).collect();
    Value::new(&shape, part(&constant.values, &constant.shape, parts))
}

/// Sets some elements to zero, depending on their positions in the whole tensor.
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
