//! Functions of every element.

use burn_tensor::Tensor;
use thinwire_model::Activation;

use super::{exact, rows};
use crate::spmd::value::Value;

/// The function of x.
pub fn forward(function: Activation, x: &Value) -> Value {
    match function {
        Activation::Relu => Value::of(x.shape(), x.flat().clamp_min(0.0)),
        Activation::Gelu => x.edited(rows::gelu),
        Activation::GeluErf | Activation::Sigmoid => exact::forward(function, x),
        Activation::Silu => x.edited(rows::silu),
        Activation::Tanh => Value::of(x.shape(), x.flat().tanh()),
    }
}

/// The gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: &[&Value]) -> Value {
    let (x, dy) = (inputs[0], inputs[1]);
    let times = |slope: Tensor<1>| Value::of(x.shape(), dy.flat() * slope);
    match function {
        Activation::Relu => times(x.flat().greater_scalar(0.0).float()),
        Activation::Gelu => dy.edited(|dy| rows::gelu_backward(&x.floats(), dy)),
        Activation::GeluErf | Activation::Sigmoid => exact::backward(function, inputs),
        Activation::Silu => dy.edited(|dy| rows::silu_backward(&x.floats(), dy)),
        Activation::Tanh => times(x.flat().tanh().powi_scalar(2).neg().add_scalar(1.0)),
    }
}
