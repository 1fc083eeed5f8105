//! Functions of every element.

use burn_tensor::Tensor;
use thinwire_model::Activation;

use super::{exact, rows};
use crate::spmd::value::Value;

/// The function of x.
pub fn forward(function: Activation, x: &Value) -> Value {
    let flat = x.flat();
    let y = match function {
        Activation::Relu => flat.clamp_min(0.0),
        Activation::Gelu => return x.edited(rows::gelu),
        Activation::GeluErf | Activation::Sigmoid => return exact::forward(function, x),
        Activation::Silu => flat.clone() * sigmoid(flat),
        Activation::Tanh => flat.tanh(),
    };
    Value::of(x.shape(), y)
}

/// The gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: &[&Value]) -> Value {
    if function == Activation::Gelu {
        let x = inputs[0].floats();
        return inputs[1].edited(|dy| rows::gelu_backward(&x, dy));
    }
    if matches!(function, Activation::GeluErf | Activation::Sigmoid) {
        return exact::backward(function, inputs);
    }
    let dy = inputs[1].flat();
    Value::of(inputs[0].shape(), dy * slope(function, inputs[0].flat()))
}

fn slope(function: Activation, x: Tensor<1>) -> Tensor<1> {
    match function {
        Activation::Relu => x.greater_scalar(0.0).float(),
        Activation::Gelu | Activation::GeluErf | Activation::Sigmoid => {
            unreachable!("{function:?} has a function of its own")
        }
        Activation::Silu => {
            let sigmoid = sigmoid(x.clone());
            let rest = sigmoid.clone().neg().add_scalar(1.0);
            sigmoid * (x * rest).add_scalar(1.0)
        }
        Activation::Tanh => x.tanh().powi_scalar(2).neg().add_scalar(1.0),
    }
}

fn sigmoid(x: Tensor<1>) -> Tensor<1> {
    x.neg().exp().add_scalar(1.0).recip()
}
