//! Functions of every element.

use thinwire_model::Activation;

use super::operands::operands;
use super::{exact, rows};
use crate::spmd::value::Value;

/// Returns the function of x.
pub fn forward(function: Activation, inputs: Vec<Value>) -> Value {
    let [x] = operands(inputs);
    x.edited(match function {
        Activation::Relu => rows::relu,
        Activation::Gelu => rows::gelu,
        Activation::GeluErf => exact::gelu,
        Activation::Sigmoid => rows::sigmoids,
        Activation::Silu => rows::silu,
        Activation::Tanh => rows::tanh,
    })
}

/// Returns the gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: Vec<Value>) -> Value {
    let [x, dy] = operands(inputs);
    let slope: fn(&[f32], &mut [f32]) = match function {
        Activation::Relu => rows::relu_backward,
        Activation::Gelu => rows::gelu_backward,
        Activation::GeluErf => exact::gelu_backward,
        Activation::Sigmoid => rows::sigmoids_backward,
        Activation::Silu => rows::silu_backward,
        Activation::Tanh => rows::tanh_backward,
    };
    dy.edited(|dy| slope(x.floats(), dy))
}
