//! Norms of a token's features.

use burn_tensor::Tensor;

use super::rows;
use crate::spmd::value::Value;

/// What is added to a variance before its root is taken.
const EPSILON: f32 = 1e-5;

/// Rows of mean square one, and one over the root that it had.
fn scaled(x: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let scale = (x.clone() * x.clone()).mean_dim(1).add_scalar(EPSILON).sqrt().recip();
    (x * scale.clone(), scale)
}

/// Mean zero and variance one, then gain and bias.
pub fn layer_norm(inputs: &[&Value]) -> Value {
    let [gain, bias] = [1, 2].map(|at| inputs[at].floats());
    inputs[0].edited(|values| rows::layer_norm(values, &gain, &bias))
}

/// The gradients of x, gain and bias.
pub fn layer_norm_backward(inputs: &[&Value]) -> Vec<Value> {
    let (x, gain) = (inputs[0].floats(), inputs[1].floats());
    let mut sums = [Vec::new(), Vec::new()];
    let dx = inputs[2].edited(|dy| sums = rows::layer_norm_backward(&x, &gain, dy));
    let vector = |values| Value::new(&[gain.len()], values, &dx.device());
    let [dgain, dbias] = sums.map(vector);
    vec![dx, dgain, dbias]
}

/// Mean square one, then gain.
pub fn rms_norm(inputs: &[&Value]) -> Value {
    let [rows, n] = inputs[0].rows();
    let (scaled, _) = scaled(inputs[0].view([rows, n]));
    Value::of(inputs[0].shape(), scaled * inputs[1].view([1, n]))
}

/// The gradients of x and gain.
pub fn rms_norm_backward(inputs: &[&Value]) -> Vec<Value> {
    let [rows, n] = inputs[0].rows();
    let (scaled, scale) = scaled(inputs[0].view([rows, n]));
    let dy = inputs[2].view([rows, n]);
    let dgain = (dy.clone() * scaled.clone()).sum_dim(0);
    let of_scaled = dy * inputs[1].view([1, n]);
    let along = (of_scaled.clone() * scaled.clone()).mean_dim(1);
    let dx = (of_scaled - scaled * along) * scale;
    vec![Value::of(inputs[0].shape(), dx), Value::of(&[n], dgain)]
}
