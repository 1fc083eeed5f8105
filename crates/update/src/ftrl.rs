//! FTRL-Proximal: follow the regularised leader, for sparse linear and embedding weights.
//!
//! McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), algorithm 1. The learning
//! rate is the paper's alpha. L1 regularisation sets weights to zero exactly.

use crate::Step;

/// Settings of [`ftrl`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FtrlOptions {
    /// The paper's beta: the root of the sum of squares that every element begins with.
    pub beta: f32,
    /// Strength of L1 regularisation.
    pub l1: f32,
    /// Strength of L2 regularisation.
    pub l2: f32,
}

impl Default for FtrlOptions {
    fn default() -> FtrlOptions {
        FtrlOptions { beta: 1.0, l1: 0.0, l2: 0.0 }
    }
}

/// Updates `values`, the paper's `z` and its sums of squares from a gradient. All slices have the same
/// length.
pub fn ftrl(
    values: &mut [f32],
    gradient: &[f32],
    [linear, squares]: [&mut [f32]; 2],
    step: Step,
    options: &FtrlOptions,
) {
    let FtrlOptions { beta, l1, l2 } = *options;
    let state = linear.iter_mut().zip(squares);
    for ((value, gradient), (linear, square)) in values.iter_mut().zip(gradient).zip(state) {
        let gradient = gradient * step.gradient_scale;
        // Without a gradient the leader stays, also where the first value was not one.
        if gradient == 0.0 {
            continue;
        }
        let before = square.sqrt();
        *square += gradient * gradient;
        let root = square.sqrt();
        *linear += gradient - (root - before) / step.learning_rate * *value;
        let excess = (linear.abs() - l1).max(0.0).copysign(*linear);
        *value = -excess / ((beta + root) / step.learning_rate + l2);
    }
}
