//! Kernels: what a rank computes of a node, one file per operator.
//!
//! Law: what a kernel gives is what [`Operator::evaluate`] gives, within the precision of f32.

mod reference;

use burn_tensor::Device;
use thinwire_model::{Operator, Region};

use super::value::Value;

/// What an operator gives for its inputs on a part of its axes.
pub fn compute(
    operator: &Operator,
    inputs: &[&Value],
    region: &Region<'_>,
    device: &Device,
) -> Vec<Value> {
    reference::compute(operator, inputs, region, device)
}
