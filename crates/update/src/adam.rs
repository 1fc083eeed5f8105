//! Adam.
//!
//! Kingma and Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015), algorithm 1.

use crate::{AdamWOptions, Step, adamw};

/// Settings of [`adam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// Factor by which an update multiplies the mean of gradients; `1 - beta1` is the weight of the new
    /// gradient.
    pub beta1: f32,
    /// Factor by which an update multiplies the mean of squared gradients; `1 - beta2` is the weight of
    /// the new square.
    pub beta2: f32,
    /// Number that is added to the denominator.
    pub epsilon: f32,
}

impl Default for AdamOptions {
    fn default() -> AdamOptions {
        AdamOptions { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

/// Updates `values`, their means and their means of squares from a gradient. All slices have the same
/// length.
pub fn adam(
    values: &mut [f32],
    gradient: &[f32],
    state: [&mut [f32]; 2],
    step: Step,
    options: &AdamOptions,
) {
    let AdamOptions { beta1, beta2, epsilon } = *options;
    let options = AdamWOptions { beta1, beta2, epsilon, weight_decay: 0.0 };
    adamw(values, gradient, state, step, &options);
}
