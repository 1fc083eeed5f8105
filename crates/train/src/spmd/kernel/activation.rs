//! Functions that are applied to every element.

use thinwire_model::Activation;

use super::exact::normal;
use super::operands::operands;
use super::rows::{each, each_slope};
use crate::spmd::value::Value;
use crate::vector::exp;

/// √(2/π) and the factor of the cube, in GELU's approximation by tanh.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// Applies the function to x.
pub fn forward(function: Activation, inputs: Vec<Value>) -> Value {
    let [x] = operands(inputs);
    x.edited(|x| match function {
        // A NaN stays one.
        Activation::Relu => each(x, |x| if x < 0.0 { 0.0 } else { x }),
        Activation::Gelu => each(x, |x| x * sigmoid(twice_inner(x))),
        Activation::GeluErf => each(x, |x| x * normal(x).0),
        Activation::Sigmoid => each(x, sigmoid),
        Activation::Silu => each(x, |x| x * sigmoid(x)),
        Activation::Tanh => each(x, f32::tanh),
    })
}

/// Returns the gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: Vec<Value>) -> Value {
    let [x, dy] = operands(inputs);
    let x = x.floats();
    dy.edited(|dy| match function {
        Activation::Relu => each_slope(x, dy, |x| f32::from(u8::from(x > 0.0))),
        Activation::Gelu => each_slope(x, dy, |x| {
            let s = sigmoid(twice_inner(x));
            let steep = 2.0 * GELU[0] * (1.0 + 3.0 * GELU[1] * x * x);
            s + x * s * (1.0 - s) * steep
        }),
        Activation::GeluErf => each_slope(x, dy, |x| {
            let (below, bell) = normal(x);
            below + x * bell * 0.398_942_3
        }),
        Activation::Sigmoid => each_slope(x, dy, |x| {
            let s = sigmoid(x);
            s * (1.0 - s)
        }),
        Activation::Silu => each_slope(x, dy, |x| {
            let s = sigmoid(x);
            s * (1.0 + x * (1.0 - s))
        }),
        Activation::Tanh => each_slope(x, dy, |x| {
            let y = x.tanh();
            1.0 - y * y
        }),
    })
}

/// Returns twice the argument of the tanh in GELU: (1 + tanh u) / 2 is the sigmoid of 2u.
#[inline(always)]
fn twice_inner(x: f32) -> f32 {
    2.0 * GELU[0] * x * (1.0 + GELU[1] * x * x)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let above = 1.0 / (1.0 + e);
    if x < 0.0 { e * above } else { above }
}
