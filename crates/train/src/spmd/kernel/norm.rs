//! Norms of a token's features.

use burn_tensor::Tensor;
use thinwire_model::Epsilon;

use super::{operands, rows};
use crate::spmd::value::Value;

/// Rows of mean square one, and one over the root that it had.
fn scaled(epsilon: Epsilon, x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let scale = (x.clone() * x.clone()).mean_dim(1).add_scalar(epsilon.value).sqrt().recip();
    (x * scale.clone(), scale)
}

/// Mean zero and variance one, then gain and bias.
pub fn layer_norm(epsilon: Epsilon, inputs: Vec<Value>) -> Value {
    let [x, gain, bias] = operands(inputs);
    let (gain, bias) = (gain.floats(), bias.floats());
    x.edited(|values| rows::layer_norm(values, &gain, &bias, epsilon.value as f32))
}

/// The gradients of x, gain and bias.
pub fn layer_norm_backward(epsilon: Epsilon, inputs: Vec<Value>) -> Vec<Value> {
    let [x, gain, dy] = operands(inputs);
    let (x, gain) = (x.into_floats(), gain.floats());
    let mut sums = [Vec::new(), Vec::new()];
    let dx = dy.edited(|dy| sums = rows::layer_norm_backward(&x, &gain, dy, epsilon.value as f32));
    let vector = |values| Value::new(&[gain.len()], values, &dx.device());
    let [dgain, dbias] = sums.map(vector);
    vec![dx, dgain, dbias]
}

/// Mean square one, then gain.
pub fn rms_norm(epsilon: Epsilon, inputs: &[&Value]) -> Value {
    let [rows, n] = inputs[0].rows();
    let (scaled, _) = scaled(epsilon, inputs[0].view([rows, n]));
    Value::of(inputs[0].shape(), scaled * inputs[1].view([1, n]))
}

/// The gradients of x and gain.
pub fn rms_norm_backward(epsilon: Epsilon, inputs: &[&Value]) -> Vec<Value> {
    let [rows, n] = inputs[0].rows();
    let (scaled, scale) = scaled(epsilon, inputs[0].view([rows, n]));
    let dy = inputs[2].view([rows, n]);
    let dgain = (dy.clone() * scaled.clone()).sum_dim(0);
    let of_scaled = dy * inputs[1].view([1, n]);
    let along = (of_scaled.clone() * scaled.clone()).mean_dim(1);
    let dx = (of_scaled - scaled * along) * scale;
    vec![Value::of(inputs[0].shape(), dx), Value::of(&[n], dgain)]
}
