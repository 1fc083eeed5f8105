//! Momentum, also called the heavy ball.
//!
//! Polyak, "Some methods of speeding up the convergence of iteration methods" (1964), in the form of
//! PyTorch and MindSpore, where the velocity does not contain the learning rate: `v = m v + g`,
//! `w -= lr v`.

use crate::Step;

/// Settings of [`momentum`] and [`nesterov`](crate::nesterov).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumOptions {
    /// Fraction of the velocity that a step keeps, from 0 to below 1.
    pub factor: f32,
}

impl Default for MomentumOptions {
    fn default() -> MomentumOptions {
        MomentumOptions { factor: 0.9 }
    }
}

/// Updates `values` and their velocity from a gradient. All slices have the same length.
pub fn momentum(
    values: &mut [f32],
    gradient: &[f32],
    velocity: &mut [f32],
    step: Step,
    options: &MomentumOptions,
) {
    for ((value, gradient), velocity) in values.iter_mut().zip(gradient).zip(velocity) {
        *velocity = options.factor * *velocity + gradient * step.gradient_scale;
        *value -= step.learning_rate * *velocity;
    }
}
