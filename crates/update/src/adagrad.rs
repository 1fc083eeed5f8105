//! AdaGrad with a diagonal matrix.
//!
//! Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
//! Optimization" (JMLR 12, 2011), figure 1: `n += g^2`, `w -= lr g / (sqrt(n) + epsilon)`.

use crate::Step;

/// Settings of [`adagrad`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradOptions {
    /// Number that is added to the denominator.
    pub epsilon: f32,
}

impl Default for AdagradOptions {
    fn default() -> AdagradOptions {
        AdagradOptions { epsilon: 1e-10 }
    }
}

/// Updates `values` and their sums of squares from a gradient. All slices have the same length.
pub fn adagrad(
    values: &mut [f32],
    gradient: &[f32],
    squares: &mut [f32],
    step: Step,
    options: &AdagradOptions,
) {
    for ((value, gradient), square) in values.iter_mut().zip(gradient).zip(squares) {
        let gradient = gradient * step.gradient_scale;
        *square += gradient * gradient;
        *value -= step.learning_rate * gradient / (square.sqrt() + options.epsilon);
    }
}
