//! RMS norm: `x[..,n] gain[n] -> y[..,n]`.
//!
//! Zhang, Sennrich, "Root Mean Square Layer Normalization": like layer norm, without the mean.

use serde::{Deserialize, Serialize};

use super::layer_norm::tokens;
use super::operand::inputs;
use super::{Epsilon, Rule};
use crate::{Declaration, Error};

/// Normalises each token to mean square one, then applies the gain; inputs x, gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm(pub Epsilon);

/// The gradients of x and gain; inputs x, gain, dy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RmsNormBackward(pub RmsNorm);

impl Rule for RmsNorm {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        self.0.check()?;
        let [x, _] = inputs(shapes)?;
        tokens(x, [&["x", "gain"], &["y"]], 4.0)
    }
}

impl Rule for RmsNormBackward {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x, _, _] = inputs(shapes)?;
        tokens(x, [&["x", "gain", "dy"], &["dx", "dgain"]], 10.0)
    }
}
