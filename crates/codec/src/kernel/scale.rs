//! Scales of blocks of codes.
//!
//! A scale keeps 17 of 24 binary digits. A code of at most 7 digits times the scale is then exact,
//! whichever way it is computed. The residual of rounding to nearest is exact too: a value whose code
//! is not 0 is at least half a scale, so its last digit is worth 2^-24 of the scale's power of two
//! at least, and the difference, no more than half a scale, needs no more than 24 such digits.

use super::bits::INFINITY;

/// Bytes of a scale.
pub(crate) const SCALE_BYTES: usize = 4;

/// Scale of a block and the inverse of the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub scale: f32,
    pub inverse: f32,
}

/// Smallest largest magnitude of a block: below, the inverse of the scale could overflow, and the block
/// is sent as zeros.
pub(crate) const SMALLEST: f32 = 7.888_609e-31; // 2^-100

/// Bits of a scale that are always 0.
pub(crate) const UNUSED: u32 = 0x7f;

impl Scale {
    /// Scale of a code without scales.
    pub(crate) const NONE: Scale = Scale { scale: 1.0, inverse: 1.0 };

    /// Scale of a block that is sent as zeros.
    pub(crate) const ZERO: Scale = Scale { scale: 0.0, inverse: 0.0 };

    /// Returns the scale of a block whose largest magnitude has the bits `max_bits`; none if that is
    /// not finite.
    ///
    /// The scale is rounded down, such that the largest value still rounds to the largest code. For
    /// stochastic rounding the scale is rounded up, since clipping the largest value would be a bias.
    #[inline(always)]
    pub(crate) fn of(max_bits: u32, max_code: i32, stochastic: bool) -> Option<Scale> {
        if max_bits >= INFINITY {
            return None;
        }
        let max = f32::from_bits(max_bits);
        if max < SMALLEST {
            return Some(Scale::ZERO);
        }
        let bits = (max / max_code as f32).to_bits();
        let mut scale = f32::from_bits(bits & !UNUSED);
        if stochastic {
            let above = f32::from_bits((bits + UNUSED) & !UNUSED);
            // Rounded up, the scale of the largest floats would decode to infinity.
            scale = if (above * max_code as f32).is_finite() { above } else { scale };
        }
        Some(Scale { scale, inverse: 1.0 / scale })
    }
}
