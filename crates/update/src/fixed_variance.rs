//! Adam by momenta, whose variance is fixed, and the rule that decides whether a variance has settled.
//!
//! Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed" (ICML 2021),
//! algorithm 1 and section 4: Adam's variance hardly changes once training has settled. From then on Adam is momentum
//! SGD with a fixed preconditioner, and momenta of several ranks may be averaged instead of gradients.

use crate::{AdamWOptions, Step};

/// Ratio of the variances of two updates from which on they count as settled.
const SETTLED: f64 = 0.96;

/// Numbers of one update by a momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumStep {
    /// Learning rate with its bias correction: the factor of the momentum divided by the denominator.
    pub rate: f32,
    /// Bias correction of the means of squares: the factor of their root.
    pub root_scale: f32,
    /// Number that is added to the root.
    pub epsilon: f32,
    /// Factor of the values before they move.
    pub keep: f32,
    /// Factor of the momentum, for instance for clipping.
    pub scale: f32,
    /// Mean of squares for elements that had no gradient while these means changed. A codec may give
    /// such an element a momentum; divided by `epsilon` alone, it would move the element far away.
    pub unseen: f32,
}

impl MomentumStep {
    /// Returns the numbers of an update of AdamW whose means of squares have changed in `squared`
    /// updates.
    pub fn new(step: Step, squared: u64, unseen: f32, options: &AdamWOptions) -> MomentumStep {
        let AdamWOptions { beta1, beta2, epsilon, weight_decay } = *options;
        let power = |beta: f32, number: u64| beta.powi(number.min(i32::MAX as u64) as i32);
        MomentumStep {
            rate: step.learning_rate / (1.0 - power(beta1, step.number)),
            root_scale: (1.0 - power(beta2, squared)).powf(-0.5),
            epsilon,
            keep: 1.0 - step.learning_rate * weight_decay,
            scale: step.gradient_scale,
            unseen,
        }
    }

    /// Returns the divisor of the momentum, from the mean of squares of an element.
    pub fn denominator(&self, square: f32) -> f32 {
        let square = if square == 0.0 { self.unseen } else { square };
        square.sqrt() * self.root_scale + self.epsilon
    }
}

/// Returns the number of updates between the two variances that [`is_settled`] compares: enough for a
/// variance to forget most of its past.
pub fn settling_updates(beta2: f64) -> usize {
    (1.0 / (1.0 - beta2)).round().max(1.0) as usize
}

/// Returns whether the sum of all variances has changed by less than 4 % from `before` to `now`,
/// [`settling_updates`] later.
pub fn is_settled(before: f64, now: f64) -> bool {
    let largest = before.max(now);
    largest > 0.0 && largest.is_finite() && before.min(now) >= SETTLED * largest
}

/// Updates `values` as [`adamw`](crate::adamw) does, but from a momentum instead of a mean of gradients.
/// The means of squares stay as they are. All slices have the same length.
pub fn adamw_by_momentum(
    values: &mut [f32],
    momentum: &[f32],
    means: &mut [f32],
    squares: &[f32],
    step: MomentumStep,
) {
    let state = means.iter_mut().zip(squares);
    for ((value, momentum), (mean, square)) in values.iter_mut().zip(momentum).zip(state) {
        *mean = momentum * step.scale;
        *value = *value * step.keep - step.rate * *mean / step.denominator(*square);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_without_a_gradient_until_then_move_as_those_with_the_largest_variance() {
        let options = AdamWOptions { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0 };
        let step = Step { learning_rate: 0.1, number: 100, gradient_scale: 1.0 };
        let step = MomentumStep::new(step, 100, 4.0, &options);
        let (mut values, mut means) = ([1.0; 2], [0.0; 2]);
        adamw_by_momentum(&mut values, &[0.5; 2], &mut means, &[0.0, 4.0], step);
        assert_eq!(values[0], values[1]);
        assert!((values[0] - 1.0).abs() < 0.1, "{values:?}");
    }

    #[test]
    fn variances_that_differ_by_four_percent_are_not_settled() {
        assert_eq!([0.9, 0.95, 0.98, 0.999].map(settling_updates), [10, 20, 50, 1000]);
        assert!(is_settled(1.0, 0.97) && is_settled(0.97, 1.0) && is_settled(2.0, 2.0));
        assert!(!is_settled(1.0, 0.95) && !is_settled(0.95, 1.0));
        assert!(!is_settled(0.0, 0.0) && !is_settled(f64::INFINITY, f64::INFINITY));
    }
}
