//! Stochastic gradient descent.
//!
//! Robbins and Monro, "A Stochastic Approximation Method" (1951): `w -= lr g`.

use crate::Step;

/// Updates `values` from a gradient of their length.
pub fn sgd(values: &mut [f32], gradient: &[f32], step: Step) {
    for (value, gradient) in values.iter_mut().zip(gradient) {
        *value -= step.learning_rate * (gradient * step.gradient_scale);
    }
}
