//! AdamW: Adam with weight decay that is not part of the gradient.
//!
//! Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019), algorithm 2. One pass
//! over memory.

use crate::Step;

/// Settings of [`adamw`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Factor by which an update multiplies the mean of gradients; `1 - beta1` is the weight of the new
    /// gradient.
    pub beta1: f32,
    /// Factor by which an update multiplies the mean of squared gradients; `1 - beta2` is the weight of
    /// the new square.
    pub beta2: f32,
    /// Number that is added to the denominator.
    pub epsilon: f32,
    /// Factor of weight decay: a step multiplies values by 1 minus this factor times the learning rate.
    pub weight_decay: f32,
}

impl Default for AdamWOptions {
    fn default() -> AdamWOptions {
        AdamWOptions { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// Updates `values`, their means and their means of squares from a gradient. All slices have the same
/// length.
pub fn adamw(
    values: &mut [f32],
    gradient: &[f32],
    [means, squares]: [&mut [f32]; 2],
    step: Step,
    options: &AdamWOptions,
) {
    let AdamWOptions { beta1, beta2, epsilon, weight_decay } = *options;
    let Step { learning_rate, gradient_scale, .. } = step;
    // Bias corrections are constants of the pass, and hold for as many updates as `powi` can count.
    let number = step.number.min(i32::MAX as u64) as i32;
    let rate = learning_rate / (1.0 - beta1.powi(number));
    let root_scale = (1.0 - beta2.powi(number)).powf(-0.5);
    let keep = 1.0 - learning_rate * weight_decay;
    let state = means.iter_mut().zip(squares);
    for ((value, gradient), (mean, square)) in values.iter_mut().zip(gradient).zip(state) {
        let gradient = gradient * gradient_scale;
        *mean = beta1 * *mean + (1.0 - beta1) * gradient;
        *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
        let denominator = square.sqrt() * root_scale + epsilon;
        *value = *value * keep - rate * *mean / denominator;
    }
}
