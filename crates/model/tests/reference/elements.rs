//! Operators of every element by itself.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, TAU};

use thinwire_model::{
    Activation, ActivationBackward, Arithmetic, Array, Constant, Dropout, Fill, Place, Region,
    Scale,
};

use super::Reference;

/// √(2/π) and the factor of the cube, in GELU's approximation.
const GELU: [f64; 2] = [0.797_884_560_802_865_4, 0.044_715];

/// A function of one number and its slope.
trait Function {
    fn of(self, x: f64) -> f64;
    fn slope(self, x: f64) -> f64;
}

impl Function for Activation {
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
}

impl Reference for Activation {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].map(|x| self.of(x))]
    }
}

impl Reference for ActivationBackward {
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

/// Returns the result of an operation on two numbers.
fn of_two(operation: Arithmetic, x: f64, y: f64) -> f64 {
    match operation {
        Arithmetic::Add => x + y,
        Arithmetic::Subtract => x - y,
        Arithmetic::Multiply => x * y,
        Arithmetic::Divide => x / y,
    }
}

impl Reference for Arithmetic {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let [x, y] = [inputs[0], inputs[1]];
        let missing = x.shape().len() - y.shape().len();
        let z = Array::from_fn(region.output_shape(0), |at| {
            let places = at[missing..].iter().zip(y.shape());
            let other: Vec<usize> = places.map(|(i, length)| *i.min(&(length - 1))).collect();
            of_two(*self, x.at(at), y.at(&other))
        });
        vec![z]
    }
}

impl Reference for Dropout {
    fn evaluate(&self, inputs: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let x = inputs[0];
        let mut key = region.key();
        key.tensor = self.stream;
        let starts: Vec<usize> = region.output(0).iter().map(|part| part.start).collect();
        let lengths = region.declaration().shape(&region.declaration().outputs[0]);
        let y = Array::from_fn(x.shape(), |at| {
            let whole = at.iter().zip(&starts).map(|(i, start)| i + start).zip(&lengths);
            let element = whole.fold(0, |element, (i, length)| element * length + i);
            let stays = f64::from(key.uniform(element as u64)) >= self.rate;
            if stays { x.at(at) / (1.0 - self.rate) } else { 0.0 }
        });
        vec![y]
    }
}

impl Reference for Fill {
    fn evaluate(&self, _: &[&Array], region: &Region<'_>) -> Vec<Array> {
        vec![Array::full(region.output_shape(0), self.value)]
    }
}

impl Reference for Constant {
    fn evaluate(&self, _: &[&Array], region: &Region<'_>) -> Vec<Array> {
        let parts = region.output(0);
        let value = |at: &[usize]| {
            let places = at.iter().zip(&parts).zip(&self.shape);
            let place = places.fold(0, |place, ((i, part), n)| place * n + part.start + i);
            f64::from(self.values[place])
        };
        vec![Array::from_fn(region.output_shape(0), value)]
    }
}

impl Reference for Place {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].clone()]
    }
}

impl Reference for Scale {
    fn evaluate(&self, inputs: &[&Array], _: &Region<'_>) -> Vec<Array> {
        vec![inputs[0].map(|value| value * self.0)]
    }
}
