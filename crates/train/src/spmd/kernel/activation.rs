//! Functions of every element.

use burn_tensor::Tensor;
use thinwire_model::Activation;

use crate::spmd::value::Value;

/// √(2/π) and the factor of the cube, in GELU's approximation by tanh.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// The function of x.
pub fn forward(function: Activation, x: &Value) -> Value {
    let flat = x.flat();
    let y = match function {
        Activation::Relu => flat.clamp_min(0.0),
        Activation::Gelu => {
            let half = flat.clone().mul_scalar(0.5);
            half * inner(flat).tanh().add_scalar(1.0)
        }
        Activation::Silu => flat.clone() * sigmoid(flat),
        Activation::Tanh => flat.tanh(),
    };
    Value::of(x.shape(), y)
}

/// The gradient of x, from x and dy.
pub fn backward(function: Activation, inputs: &[&Value]) -> Value {
    let dy = inputs[1].flat();
    Value::of(inputs[0].shape(), dy * slope(function, inputs[0].flat()))
}

fn slope(function: Activation, x: Tensor<1>) -> Tensor<1> {
    match function {
        Activation::Relu => x.greater_scalar(0.0).float(),
        Activation::Gelu => {
            let tanh = inner(x.clone()).tanh();
            let steep = tanh.clone().powi_scalar(2).neg().add_scalar(1.0);
            let square = x.clone() * x.clone();
            let of_inner = square.mul_scalar(3.0 * GELU[1]).add_scalar(1.0).mul_scalar(GELU[0]);
            (tanh.add_scalar(1.0) + x * steep * of_inner).mul_scalar(0.5)
        }
        Activation::Silu => {
            let sigmoid = sigmoid(x.clone());
            let rest = sigmoid.clone().neg().add_scalar(1.0);
            sigmoid * (x * rest).add_scalar(1.0)
        }
        Activation::Tanh => x.tanh().powi_scalar(2).neg().add_scalar(1.0),
    }
}

/// What GELU takes the tanh of.
fn inner(x: Tensor<1>) -> Tensor<1> {
    let square = x.clone() * x.clone();
    x * square.mul_scalar(GELU[1]).add_scalar(1.0).mul_scalar(GELU[0])
}

fn sigmoid(x: Tensor<1>) -> Tensor<1> {
    x.neg().exp().add_scalar(1.0).recip()
}
