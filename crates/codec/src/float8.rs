//! Numbers of one byte under one scale per block of 128.
//!
//! Micikevicius et al., "FP8 formats for deep learning" (2022, section 3). The block's largest
//! magnitude becomes the largest number of the format, so nothing overflows and nothing is NaN: the
//! patterns of NaN and infinity are never written, and are read as the numbers that would follow.
//!
//! Law: off by at most 1/16 (`e4m3`) or 1/8 (`e5m2`) of a value, or by half the smallest number.

use std::fmt;

use crate::coded::{Code, SIGN, largest};
use crate::kernel::Scale;
use crate::{Bound, Claims};

/// A format of a sign, an exponent and `digits` digits behind the point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float8 {
    name: &'static str,
    digits: u32,
    /// What is added to the exponent.
    bias: u32,
    largest: f32,
}

/// Four bits of exponent, up to 448.
pub(crate) const E4M3: Float8 = Float8 { name: "e4m3", digits: 3, bias: 7, largest: 448.0 };
/// Five bits of exponent, up to 57344.
pub(crate) const E5M2: Float8 = Float8 { name: "e5m2", digits: 2, bias: 15, largest: 57344.0 };

/// A power of two as an f32.
#[inline(always)]
fn power(exponent: u32) -> f32 {
    f32::from_bits(exponent << 23)
}

impl Float8 {
    /// The smallest positive number.
    #[inline(always)]
    fn step(&self) -> f32 {
        power(128 - self.bias - self.digits)
    }
}

impl fmt::Display for Float8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Code for Float8 {
    const SCALED: bool = true;
    const RANDOM: bool = false;

    #[inline(always)]
    fn bits(&self) -> usize {
        8
    }

    #[inline(always)]
    fn scale(&self, values: &[f32]) -> Option<Scale> {
        Scale::of(largest(values), self.largest as i32, false)
    }

    /// Of small numbers the digits are a multiple of the step, for which the adder rounds.
    #[inline(always)]
    fn code(&self, x: f32, scale: Scale, _random: u32) -> u32 {
        let y = (x * scale.inverse).to_bits();
        let (magnitude, cut) = (y & !SIGN, 23 - self.digits);
        let rounded = (magnitude + (1 << (cut - 1)) - 1 + (magnitude >> cut & 1)) >> cut;
        let normal = rounded.wrapping_sub((127 - self.bias) << self.digits);
        let shift = self.step() * (1 << 23) as f32;
        let small = (f32::from_bits(magnitude) + shift).to_bits().wrapping_sub(shift.to_bits());
        let least = (128 - self.bias) << 23;
        (if magnitude < least { small } else { normal }) | y >> 24 & 0x80
    }

    /// As an f32 with the same exponent field the number is too small by a power of two.
    #[inline(always)]
    fn value(&self, code: u32, scale: f32) -> f32 {
        let cut = 23 - self.digits;
        let exponent = (code & 0x7f) >> self.digits;
        let normal = f32::from_bits(((code & 0x7f) << cut) + ((127 - self.bias) << 23));
        let small = (code & ((1 << self.digits) - 1)) as f32 * self.step();
        let magnitude = if exponent == 0 { small } else { normal };
        f32::from_bits(magnitude.to_bits() | code << 24 & SIGN) * scale
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    /// Off by half a digit of a value, and by half a step where it is smaller than that.
    fn bound(&self, elements: usize) -> Bound {
        let digit = 2.0f64.powi(-1 - self.digits as i32);
        let step = f64::from(self.step() / 2.0 / self.largest);
        let others = (elements - 1) as f64;
        Bound::Contraction(1.0 - digit * digit - others * step * step)
    }

    fn claims(&self) -> Claims {
        Claims::ALL
    }
}
