//! A function of every element: `x[..] -> y[..]`.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, TAU};

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{elementwise, inputs};
use crate::{Array, Declaration, Error, Region};

/// The function; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The larger of x and 0.
    Relu,
    /// x times the normal distribution up to x, in the approximation by tanh (Hendrycks, Gimpel,
    /// "Gaussian Error Linear Units", section 2).
    Gelu,
    /// x times the normal distribution up to x, by the error function (section 2 of the same).
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

/// √(2/π) and the factor of the cube, in GELU's approximation.
const GELU: [f64; 2] = [0.797_884_560_802_865_4, 0.044_715];

impl Activation {
    fn of(self, x: f64) -> f64 {
        match self {
            Activation::Relu => x.max(0.0),
            Activation::Gelu => 0.5 * x * (1.0 + (GELU[0] * (x + GELU[1] * x.powi(3))).tanh()),
            Activation::GeluErf => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
            Activation::Silu => x * sigmoid(x),
            Activation::Sigmoid => sigmoid(x),
            Activation::Tanh => x.tanh(),
        }
    }

    fn slope(self, x: f64) -> f64 {
        match self {
            Activation::Relu => f64::from(u8::from(x > 0.0)),
            Activation::Gelu => {
                let tanh = (GELU[0] * (x + GELU[1] * x.powi(3))).tanh();
                let inner = GELU[0] * (1.0 + 3.0 * GELU[1] * x * x);
                0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
            }
            Activation::GeluErf => {
                let density = (-0.5 * x * x).exp() / TAU.sqrt();
                0.5 * (1.0 + erf(x * FRAC_1_SQRT_2)) + x * density
            }
            Activation::Silu => sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x))),
            Activation::Sigmoid => sigmoid(x) * (1.0 - sigmoid(x)),
            Activation::Tanh => 1.0 - x.tanh().powi(2),
        }
    }

    /// Flops of one element; a function such as tanh is counted as five.
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

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].map(|x| self.of(x))]
    }
}

impl Rule for ActivationBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _] = inputs(shapes)?;
        elementwise(x, &["x", "dy"], "dx", 2.0 * self.0.flops())
    }

    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        let mut dx = inputs[0].map(|x| self.0.slope(x));
        dx.values_mut().iter_mut().zip(inputs[1].values()).for_each(|(dx, dy)| *dx *= dy);
        vec![dx]
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function, by its series of positive terms: 2/√π · exp(−x²) · Σ (2x²)ⁿ x / (1·3···(2n+1)).
fn erf(x: f64) -> f64 {
    // Beyond this it is one, to the last bit.
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[test]
fn the_error_function_is_as_tabulated() {
    // Abramowitz, Stegun, "Handbook of Mathematical Functions", table 7.1.
    let table =
        [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)];
    for (x, expected) in table {
        assert!((erf(x) - expected).abs() < 1e-10 && (erf(-x) + expected).abs() < 1e-10, "{x}");
    }
    assert!((erf(5.9) - 1.0).abs() < 1e-15 && erf(7.0) == 1.0);
}
