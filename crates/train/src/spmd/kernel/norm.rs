//! Norms of a token's features.

use thinwire_model::Epsilon;

use super::operands::operands;
use super::rows;
use crate::spmd::value::Value;

/// Mean zero and variance one, then gain and bias.
pub fn layer_norm(epsilon: Epsilon, inputs: Vec<Value>) -> Value {
    let [x, gain, bias] = operands(inputs);
    x.edited(|x| rows::layer_norm(x, gain.floats(), bias.floats(), epsilon.value as f32))
}

/// The gradients of x, gain and bias.
pub fn layer_norm_backward(epsilon: Epsilon, inputs: Vec<Value>) -> Vec<Value> {
    let [x, gain, dy] = operands(inputs);
    let (x, gain) = (x.floats(), gain.floats());
    let mut sums = [Vec::new(), Vec::new()];
    let dx = dy.edited(|dy| sums = rows::layer_norm_backward(x, gain, dy, epsilon.value as f32));
    let vector = |values| Value::new(&[gain.len()], values);
    let [dgain, dbias] = sums.map(vector);
    vec![dx, dgain, dbias]
}

/// Mean square one, then gain.
pub fn rms_norm(epsilon: Epsilon, inputs: Vec<Value>) -> Value {
    let [x, gain] = operands(inputs);
    x.edited(|x| rows::rms_norm(x, gain.floats(), epsilon.value as f32))
}

/// The gradients of x and gain.
pub fn rms_norm_backward(epsilon: Epsilon, inputs: Vec<Value>) -> Vec<Value> {
    let [x, gain, dy] = operands(inputs);
    let (x, gain) = (x.floats(), gain.floats());
    let mut dgain = Vec::new();
    let dx = dy.edited(|dy| dgain = rows::rms_norm_backward(x, gain, dy, epsilon.value as f32));
    vec![dx, Value::new(&[gain.len()], dgain)]
}
