//! A function of every element: `x[..] -> y[..]`.

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{elementwise, inputs};
use crate::{Declaration, Error};

/// Functions of every element; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The larger of x and 0.
    Relu,
    /// x times the cumulative normal distribution at x, in the approximation by tanh (Hendrycks, Gimpel,
    /// "Gaussian Error Linear Units", section 2).
    Gelu,
    /// x times the cumulative normal distribution at x, by the error function (section 2 of the same paper).
    GeluErf,
    /// x times its sigmoid.
    Silu,
    /// 1 / (1 + exp(−x)).
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}

/// The gradient of x; inputs x and dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActivationBackward(pub Activation);

impl Activation {
    /// Returns the flops per element; a function such as tanh counts as five.
    fn flops(self) -> f64 {
        match self {
            Activation::Relu => 1.0,
            Activation::Gelu => 12.0,
            Activation::GeluErf => 9.0,
            Activation::Silu => 7.0,
            Activation::Sigmoid => 6.0,
            Activation::Tanh => 5.0,
        }
    }
}

impl Rule for Activation {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        elementwise(x, &["x"], "y", self.flops())
    }
}

impl Rule for ActivationBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _] = inputs(shapes)?;
        elementwise(x, &["x", "dy"], "dx", 2.0 * self.0.flops())
    }
}
