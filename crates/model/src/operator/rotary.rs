//! Rotary positions: `x[b,s,g·d] -> y[b,s,g·d]`.
//!
//! Su et al., "RoFormer", section 3.2: within a head, features i and i + d/2 are a pair, which is rotated by
//! an angle that grows with the token's position in its sequence.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::Rule;
use super::operand::{check_number, dims, inputs, quotient};
use crate::{Axes, Declaration, Error, Kind, Operand};

/// Rotates pairs of features; input x.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotary {
    /// The number of features of a head, which is even.
    pub head_size: usize,
    /// Base of the angles: the last pair rotates more slowly than the first pair, by about this factor;
    /// 10,000 in the paper.
    pub base: f64,
    /// Whether pairs are rotated backwards, as in the gradient.
    pub back: bool,
}

/// Range of bases; others are refused as mistakes.
const BASES: RangeInclusive<f64> = 1e-6..=1e12;

impl Rule for Rotary {
    fn declare(&self, shapes: &[&[usize]]) -> Result<Declaration, Error> {
        let [x] = inputs(shapes)?;
        let [b, s, features] = dims("x", x)?;
        if self.head_size % 2 == 1 {
            let message =
                format!("a head has {} features, expected an even number", self.head_size);
            return Err(Error::new(Kind::Operands, message));
        }
        check_number("base", self.base, BASES)?;
        let heads = quotient("x", features, self.head_size)?;
        let mut axes = Axes::default();
        let dims = [axes.even('b', b), axes.even('s', s), axes.even('g', heads)];
        let flops = 3.0 * axes.points() * self.head_size as f64;
        let dims = [dims[0], dims[1], dims[2].wide(self.head_size)];
        Ok(axes.declare([Operand::new("x", dims)], [Operand::new("y", dims)], flops).linear())
    }
}
