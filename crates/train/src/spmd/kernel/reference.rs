//! Any operator by its meaning in `model`: slow, and always right.

use thinwire_model::{Array, Operator, Region};

use crate::spmd::value::Value;

/// Computes an operator in f64 and rounds to f32.
pub fn compute(operator: &Operator, inputs: &[&Value], region: &Region<'_>) -> Vec<Value> {
    let arrays: Vec<Array> = inputs.iter().map(|value| value.array()).collect();
    let outputs = operator.evaluate(&arrays.iter().collect::<Vec<_>>(), region);
    outputs.iter().map(Value::from_array).collect()
}
