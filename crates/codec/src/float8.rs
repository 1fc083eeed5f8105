//! Numbers of one byte under one scale per block of 128.
//!
//! Micikevicius et al., "FP8 formats for deep learning" (2022, section 3). The largest magnitude of
//! the block becomes the largest number of the format, so nothing overflows: the patterns of NaN and
//! infinity are never written, and are read as the numbers that would follow.
//!
//! Law: the error is at most 1/16 (`e4m3`) or 1/8 (`e5m2`) of a value, or half the smallest number.

use crate::Bound;
use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::kernel::bits::SIGN;
use crate::kernel::codes::Code;
use crate::kernel::{Rounding, Scale};

/// Numbers of one byte: four bits of exponent, three digits.
pub(crate) const E4M3: Entry = Entry {
    usage: "e4m3",
    summary: "floating-point numbers of one byte, 132 bytes per 128 elements",
    examples: &["e4m3"],
    parse: |parameter| without_parameter("e4m3", parameter, Coded(Float8::<3>)),
};

/// Numbers of one byte: five bits of exponent, two digits.
pub(crate) const E5M2: Entry = Entry {
    usage: "e5m2",
    summary: "floating-point numbers of one byte, 132 bytes per 128 elements",
    examples: &["e5m2"],
    parse: |parameter| without_parameter("e5m2", parameter, Coded(Float8::<2>)),
};

/// Format of a sign, an exponent and three digits behind the point (`e4m3`, up to 448) or two
/// (`e5m2`, up to 57344).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float8<const DIGITS: u32>;

impl<const DIGITS: u32> Float8<DIGITS> {
    /// Number of digits of an f32 that the format drops.
    pub(crate) const CUT: u32 = 23 - DIGITS;
    /// Bias of the exponent.
    pub(crate) const BIAS: u32 = (1 << (6 - DIGITS)) - 1;
    /// Smallest positive number.
    pub(crate) const STEP: f32 = f32::from_bits((128 - Self::BIAS - DIGITS) << 23);
    /// Largest number.
    const MAX: f32 = if DIGITS == 3 { 448.0 } else { 57344.0 };
}

impl<const DIGITS: u32> Code for Float8<DIGITS> {
    const SCALED: bool = true;

    fn name(&self) -> String {
        format!("e{}m{DIGITS}", 7 - DIGITS)
    }

    fn bits(&self) -> usize {
        8
    }

    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        Scale::of(max, Self::MAX as i32, Rounding::Nearest)
    }

    fn code(&self, x: f32, scale: Scale, _random: u32) -> u32 {
        let y = (x * scale.inverse).to_bits();
        let (magnitude, cut) = (y & !SIGN, Self::CUT);
        let rounded = (magnitude + (1 << (cut - 1)) - 1 + (magnitude >> cut & 1)) >> cut;
        let normal = rounded.wrapping_sub((127 - Self::BIAS) << DIGITS);
        // Small numbers are multiples of the step: added to a number whose last digit is worth a step,
        // they are rounded by the adder.
        let shift = Self::STEP * (1 << 23) as f32;
        let small = (f32::from_bits(magnitude) + shift).to_bits().wrapping_sub(shift.to_bits());
        let min_normal = (128 - Self::BIAS) << 23;
        (if magnitude < min_normal { small } else { normal }) | y >> 24 & 0x80
    }

    fn value(&self, code: u32, scale: f32) -> f32 {
        // The exponent of the format is moved to the bias of f32.
        let normal = f32::from_bits(((code & 0x7f) << Self::CUT) + ((127 - Self::BIAS) << 23));
        let small = (code & ((1 << DIGITS) - 1)) as f32 * Self::STEP;
        let magnitude = if (code & 0x7f) >> DIGITS == 0 { small } else { normal };
        f32::from_bits(magnitude.to_bits() | code << 24 & SIGN) * scale
    }

    fn bound(&self, elements: usize) -> Bound {
        // Off by half a digit of a value, or by half a step where that is more.
        let digit = 2.0f64.powi(-1 - DIGITS as i32);
        let step = f64::from(Self::STEP / 2.0 / Self::MAX);
        let others = (elements - 1) as f64;
        Bound::Contraction(1.0 - digit * digit - others * step * step)
    }
}
