//! GELU by the error function, and the sigmoid by itself.

use std::f64::consts::{FRAC_1_SQRT_2, TAU};

use burn_tensor::Tensor;
use thinwire_model::Activation;

use crate::spmd::value::Value;

/// The function of x.
pub fn forward(function: Activation, x: &Value) -> Value {
    let flat = x.flat();
    let y = match function {
        Activation::Sigmoid => sigmoid(flat),
        _ => flat.clone() * normal(flat),
    };
    Value::of(x.shape(), y)
}

/// The gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: &[&Value]) -> Value {
    let (x, dy) = (inputs[0].flat(), inputs[1].flat());
    let slope = match function {
        Activation::Sigmoid => {
            let y = sigmoid(x);
            y.clone() * y.neg().add_scalar(1.0)
        }
        _ => {
            let density = (x.clone() * x.clone()).mul_scalar(-0.5).exp().div_scalar(TAU.sqrt());
            normal(x.clone()) + x * density
        }
    };
    Value::of(inputs[0].shape(), dy * slope)
}

/// The normal distribution up to x.
fn normal(x: Tensor<1>) -> Tensor<1> {
    x.mul_scalar(FRAC_1_SQRT_2).erf().add_scalar(1.0).mul_scalar(0.5)
}

fn sigmoid(x: Tensor<1>) -> Tensor<1> {
    x.neg().exp().add_scalar(1.0).recip()
}
