//! GELU and causal softmax on slices, with what backward needs of them.
//!
//! Burn's flex backend calls the C library's `exp` and `erf` once per element, 3 to 13 ns each:
//! more than a fifth of a step. These loops are branch-free, so the compiler vectorises them, and
//! they give value and derivative in one pass.

use crate::vector::{exp, maximum, sum};

/// `x Phi(x)` in place; `slope` receives its derivative. `Phi` is the normal distribution.
///
/// "Gaussian Error Linear Units" (Hendrycks and Gimpel), the exact form. `Phi` is Abramowitz and
/// Stegun's formula 7.1.26, within 1e-7.
pub fn gelu(values: &mut [f32], slope: &mut [f32]) {
    for (value, slope) in values.iter_mut().zip(slope) {
        let x = *value;
        let bell = exp(-0.5 * x * x);
        let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
        let polynomial = 0.127_414_8
            + t * (-0.142_248_37 + t * (0.710_706_9 + t * (-0.726_576 + t * 0.530_702_7)));
        let tail = polynomial * t * bell;
        let below = if x < 0.0 { tail } else { 1.0 - tail };
        *slope = below + x * bell * 0.398_942_3;
        *value = x * below;
    }
}

/// Rows of attention scores, `[.., context, context]`, become probabilities in place: softmax of
/// `scale * score` over the columns up to the row's own number, and 0 beyond.
pub fn causal_softmax(scores: &mut [f32], context: usize, scale: f32) {
    for (index, row) in scores.chunks_exact_mut(context).enumerate() {
        let (seen, hidden) = row.split_at_mut(index % context + 1);
        let shift = maximum(seen);
        seen.iter_mut().for_each(|score| *score = exp((*score - shift) * scale));
        let inverse = 1.0 / sum(seen);
        seen.iter_mut().for_each(|weight| *weight *= inverse);
        hidden.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The integral of the bell curve by Simpson's rule.
    fn normal_distribution(x: f64) -> f64 {
        let bell = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        let (steps, width) = (2000, x / 2000.0);
        let weight = |i| if i == 0 || i == steps { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
        0.5 + (0..=steps).map(|i| weight(i) * bell(f64::from(i) * width)).sum::<f64>() * width / 3.0
    }

    #[test]
    fn gelu_is_x_times_the_normal_distribution() {
        for i in -600..=600 {
            let x = i as f32 * 0.01;
            let (mut value, mut slope) = ([x], [0.0]);
            gelu(&mut value, &mut slope);
            let exact = |x: f64| x * normal_distribution(x);
            let x = f64::from(x);
            assert!((f64::from(value[0]) - exact(x)).abs() < 1e-6, "gelu({x}) = {}", value[0]);
            let difference = (exact(x + 1e-4) - exact(x - 1e-4)) / 2e-4;
            assert!((f64::from(slope[0]) - difference).abs() < 1e-6, "slope at {x}: {}", slope[0]);
        }
    }

    #[test]
    fn softmax_sees_no_later_column() {
        let context = 19;
        let mut scores: Vec<f32> =
            (0..2 * context * context).map(|i| (i * 37 % 101) as f32).collect();
        let original = scores.clone();
        causal_softmax(&mut scores, context, 0.1);
        for (index, (row, original)) in
            scores.chunks(context).zip(original.chunks(context)).enumerate()
        {
            let seen = index % context + 1;
            let weight = |score: f32| (f64::from(score) * 0.1).exp();
            let total: f64 = original[..seen].iter().map(|score| weight(*score)).sum();
            for (found, score) in row[..seen].iter().zip(original) {
                let expected = weight(*score) / total;
                assert!((f64::from(*found) - expected).abs() < 1e-6);
            }
            assert!(row[seen..].iter().all(|weight| *weight == 0.0));
        }
    }
}
