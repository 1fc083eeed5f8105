//! Nesterov's momentum.
//!
//! Sutskever et al., "On the importance of initialization and momentum in deep learning" (ICML 2013),
//! section 2. As in PyTorch, the gradient is taken at the present parameters: `v = m v + g`,
//! `w -= lr (g + m v)`. DiLoCo's outer step is this rule with 0.7 and 0.9.

use crate::{MomentumOptions, Step};

/// Updates `values` and their velocity from a gradient. All slices have the same length.
pub fn nesterov(
    values: &mut [f32],
    gradient: &[f32],
    velocity: &mut [f32],
    step: Step,
    options: &MomentumOptions,
) {
    for ((value, gradient), velocity) in values.iter_mut().zip(gradient).zip(velocity) {
        let gradient = gradient * step.gradient_scale;
        *velocity = options.factor * *velocity + gradient;
        *value -= step.learning_rate * (gradient + options.factor * *velocity);
    }
}
