//! Softmax over the last dimension.

use burn_tensor::{Device, Tensor, TensorData};
use thinwire_model::{Region, Softmax};

use crate::spmd::value::Value;

/// Exponentials that sum to one.
pub fn softmax(softmax: &Softmax, x: &Value, region: &Region<'_>) -> Value {
    let [rows, n] = x.rows();
    if !softmax.causal {
        return Value::of(x.shape(), of_rows(x.view([rows, n])));
    }
    let parts = region.output(0);
    let queries = parts[parts.len() - 2];
    let scores = x.view([rows / queries.length.max(1), queries.length, n]);
    let mask =
        mask((queries.start, queries.length), n, &x.device()).reshape([1, queries.length, n]);
    Value::of(x.shape(), of_rows((scores + mask).reshape([rows, n])))
}

/// The gradient of x, from y and dy.
pub fn backward(inputs: &[&Value]) -> Value {
    let [rows, n] = inputs[0].rows();
    let (y, dy) = (inputs[0].view([rows, n]), inputs[1].view([rows, n]));
    Value::of(inputs[0].shape(), slope(y, dy))
}

/// A softmax of every row.
pub fn of_rows(x: Tensor<2>) -> Tensor<2> {
    let exponentials = (x.clone() - x.max_dim(1)).exp();
    exponentials.clone() / exponentials.sum_dim(1)
}

/// The gradient of what a softmax was of.
pub fn slope(y: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    let along = (y.clone() * dy.clone()).sum_dim(1);
    y * (dy - along)
}

/// What is added to scores `[queries, keys]` so that no query sees a later key.
pub fn mask((first, queries): (usize, usize), keys: usize, device: &Device) -> Tensor<2> {
    let sees = |at: usize| at % keys <= first + at / keys;
    let values = (0..queries * keys).map(|at| if sees(at) { 0.0 } else { f32::NEG_INFINITY });
    Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), [queries, keys]), device)
}
