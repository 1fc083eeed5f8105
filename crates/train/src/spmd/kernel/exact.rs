//! GELU in its exact form: `x Phi(x)`, where `Phi` is the normal distribution.
//!
//! "Gaussian Error Linear Units" (Hendrycks and Gimpel). `Phi` is computed by Abramowitz and Stegun's formula
//! 7.1.26, within 1e-7. No branch depends on a value, so the compiler vectorises it.

use crate::vector::exp;

/// Returns the cumulative normal distribution at x, and `e^(-x^2/2)`.
#[inline(always)]
pub fn normal(x: f32) -> (f32, f32) {
    let bell = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let polynomial =
        0.127_414_8 + t * (-0.142_248_37 + t * (0.710_706_9 + t * (-0.726_576 + t * 0.530_702_7)));
    let tail = polynomial * t * bell;
    (if x < 0.0 { tail } else { 1.0 - tail }, bell)
}
