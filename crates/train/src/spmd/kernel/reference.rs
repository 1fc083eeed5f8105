//! Products that sum over an axis which only one of the operands has: slow, in f64.

use thinwire_model::{Array, Operand, Region};

use crate::spmd::value::Value;

/// Computes a product in f64 and rounds it to f32.
pub fn matmul(inputs: &[&Value], region: &Region<'_>) -> Value {
    let [x, y] = [inputs[0].array(), inputs[1].array()];
    let place = |operand: &Operand, at: &[usize]| -> Vec<usize> {
        operand.dims.iter().map(|dim| at[dim.axis]).collect()
    };
    let declaration = region.declaration();
    let [left, right] = [&declaration.inputs[0], &declaration.inputs[1]];
    let mut z = Array::full(region.output_shape(0), 0.0);
    Array::each_index(&region.lengths(), |at| {
        let product = x.at(&place(left, at)) * y.at(&place(right, at));
        z.add(&place(&declaration.outputs[0], at), product);
    });
    Value::from_array(&z)
}
