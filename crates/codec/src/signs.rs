//! Signs under one unit per block of 128, one or two bits per element.
//!
//! `onebit` and `int2`. The lowest bit of a code is the sign: 1 for a negative value. The next bit of
//! `int2` is 1 if the magnitude is three units instead of one. The unit is a fixed multiple of the mean
//! magnitude of the block and keeps 17 of 24 binary digits, so three units are exact, and so is the mean
//! of 128 equal magnitudes. The residual of a value is rounded once, since a value may be far smaller
//! than the unit.
//! Both need feedback: a small element is sent as large as the mean of its block until the residual
//! turns its sign.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::kernel::bits::SIGN;
use crate::kernel::codes::Code;
use crate::kernel::group::Layout;
use crate::kernel::{GROUP, SMALLEST, Scale, UNUSED, magnitudes};
use crate::{Bound, Claims};

/// Two bits per element and one unit per 128: 2.25 bits.
///
/// The values are ±1/2 and ±3/2 of 1.25 times the mean magnitude of the block. The codec error of
/// normal values is 0.12, as with the best four values (Lloyd, "Least squares quantization in PCM",
/// table 1; Max, "Quantizing for minimum distortion").
pub(crate) const INT2: Entry = Entry {
    usage: "int2",
    summary: "4 levels, 36 bytes per 128 elements",
    examples: &["int2"],
    parse: |parameter| without_parameter("int2", parameter, Coded(Signs::<2>)),
};

/// One bit per element and one mean magnitude per 128: 1.25 bits.
///
/// Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
/// training of speech DNNs" (2014), with the scale of Karimireddy et al., "Error feedback fixes SignSGD
/// and other gradient compression schemes", section 4. Zero counts as positive, and a block of zeros
/// is decoded to zeros.
pub(crate) const ONEBIT: Entry = Entry {
    usage: "onebit",
    summary: "the sign and a mean magnitude, 20 bytes per 128 elements",
    examples: &["onebit"],
    parse: |parameter| without_parameter("onebit", parameter, Coded(Signs::<1>)),
};

/// Signs times the mean magnitude of the block. With two `BITS`, signs times one or three units of 5/8 of
/// the mean magnitude, nearly the best unit for normal values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signs<const BITS: usize>;

/// Factor of every magnitude before the sum over the elements of a block, so that no sum overflows.
pub(crate) const SHARE: f32 = 1.0 / GROUP as f32;

impl<const BITS: usize> Signs<BITS> {
    /// Returns the unit of a block of `length` elements with the sum of magnitudes `sum`, each times
    /// [`SHARE`]; `None` if the decoded values would not be finite.
    #[inline(always)]
    pub(crate) fn unit(sum: f32, length: usize) -> Option<Scale> {
        let mean = sum / (length as f32 * SHARE);
        if mean < SMALLEST {
            return Some(Scale::ZERO);
        }
        let unit = mean * if BITS == 1 { 1.0 } else { 0.625 };
        let scale = f32::from_bits(unit.to_bits() & !UNUSED);
        let largest = if BITS == 1 { scale } else { three(scale) };
        // Codes follow from comparisons, which need no inverse.
        (largest < f32::INFINITY).then_some(Scale { scale, inverse: 0.0 })
    }
}

/// Returns the larger of the two magnitudes of two bits.
#[inline(always)]
fn three(unit: f32) -> f32 {
    unit * 3.0
}

/// Returns the bits of the largest magnitude that is nearer to one unit than to three.
#[inline(always)]
pub(crate) fn middle(unit: f32) -> u32 {
    (unit * 2.0).to_bits() & !SIGN
}

impl<const BITS: usize> Code for Signs<BITS> {
    const SCALED: bool = true;
    const LAYOUT: Layout = if BITS == 1 { Layout::Planes } else { Layout::Lanes };

    fn name(&self) -> String {
        (if BITS == 1 { "onebit" } else { "int2" }).to_owned()
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        BITS
    }

    #[inline(always)]
    fn scale(&self, values: &[f32], _max: u32) -> Option<Scale> {
        Self::unit(magnitudes(values, SHARE), values.len())
    }

    #[inline(always)]
    fn code(&self, x: f32, scale: Scale, _random: u32) -> u32 {
        let large = BITS == 2 && x.to_bits() & !SIGN > middle(scale.scale);
        x.to_bits() >> 31 | u32::from(large) << 1
    }

    #[inline(always)]
    fn value(&self, code: u32, unit: f32) -> f32 {
        let magnitude = if BITS == 1 || code & 2 == 0 { unit } else { three(unit) };
        f32::from_bits(magnitude.to_bits() ^ code << 31)
    }

    /// One bit sends `‖x‖₁² / (n ‖x‖₂²)` of the squared length, which is smallest if only one element is
    /// not zero.
    ///
    /// For two bits, let the mean magnitude be 1. Of `y²`, for a magnitude `y`, the codec sends
    /// `g(y) = max(5/4 y - 25/64, 15/4 y - 225/64)`, which is convex. Its mean over the block is
    /// therefore at least `g(1) = 55/64`, and the mean of `y²` is at most `n`. From four elements on,
    /// the bound is larger: `g(y) - δ y² >= 25/64 (y - 1)` from 0 to `n` with the `δ` below. One
    /// nonzero element attains this ratio, so no larger bound holds.
    fn bound(&self, elements: usize) -> Bound {
        let n = elements as f64;
        Bound::Contraction(match BITS {
            1 => 1.0 / n,
            _ if n < 4.0 => 55.0 / 64.0 / n,
            _ => (215.0 / 64.0 - 25.0 / 8.0 / n) / n,
        })
    }

    fn claims(&self) -> Claims {
        // With two bits, the mean of decoded magnitudes is not the mean of the encoded ones.
        Claims { idempotent: BITS == 1, exact: false, ..Claims::ALL }
    }
}
