//! Softmax over the last dimension.

use thinwire_model::{Region, Softmax};

use super::operands::operands;
use super::rows;
use crate::spmd::value::Value;

/// Computes exponentials that sum to one.
pub fn softmax(softmax: &Softmax, inputs: Vec<Value>, region: &Region<'_>) -> Value {
    let [x] = operands(inputs);
    let width = x.rows()[1];
    let parts = region.output(0);
    let queries = softmax.causal.then(|| parts[parts.len() - 2]);
    let causal = queries.map(|queries| (queries.start, queries.length));
    x.edited(|scores| rows::softmax(scores, width, 1.0, causal))
}

/// Returns the gradient of x, from y and dy.
pub fn backward(inputs: Vec<Value>) -> Value {
    let [y, dy] = operands(inputs);
    let width = y.rows()[1];
    dy.edited(|dy| rows::softmax_backward(y.floats(), dy, width, 1.0))
}
