//! Functions of every element.

use burn_tensor::Tensor;
use thinwire_model::Activation;

use super::{exact, operands, rows};
use crate::spmd::value::Value;

/// The function of x.
pub fn forward(function: Activation, inputs: Vec<Value>) -> Value {
    let [x] = operands(inputs);
    match function {
        Activation::Relu => x.mapped(|x| x.clamp_min(0.0)),
        Activation::Gelu => x.edited(rows::gelu),
        Activation::GeluErf => x.edited(exact::gelu),
        Activation::Sigmoid => x.edited(rows::sigmoids),
        Activation::Silu => x.edited(rows::silu),
        Activation::Tanh => x.mapped(Tensor::tanh),
    }
}

/// The gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: Vec<Value>) -> Value {
    let [x, dy] = operands(inputs);
    let slope: fn(&[f32], &mut [f32]) = match function {
        Activation::Relu => rows::relu_backward,
        Activation::Gelu => rows::gelu_backward,
        Activation::GeluErf => exact::gelu_backward,
        Activation::Sigmoid => rows::sigmoids_backward,
        Activation::Silu => rows::silu_backward,
        Activation::Tanh => {
            return dy.mapped(|dy| dy * x.into_flat().tanh().powi_scalar(2).neg().add_scalar(1.0));
        }
    };
    let x = x.into_floats();
    dy.edited(|dy| slope(&x, dy))
}
