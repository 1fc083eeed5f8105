//! Bits of f32: patterns that several loops need, and scales of blocks of codes.
//!
//! A scale keeps 17 of 24 binary digits. A code of at most 7 digits times the scale is then exact,
//! whichever way it is computed. The residual of rounding to nearest is exact too: a value whose code
//! is not 0 is at least half a scale, so its last digit is worth 2^-24 of the scale's power of two
//! at least, and the difference, no more than half a scale, needs no more than 24 such digits.

/// Sign bit of an f32.
pub(crate) const SIGN: u32 = 1 << 31;

/// Bits of positive infinity. Magnitudes below are finite, magnitudes above are NaN.
pub(crate) const INFINITY: u32 = 0x7f80_0000;

/// Rounds to the nearest integer, ties to even; exact for magnitudes below 2^22.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    // 1.5 * 2^23: the last digit of the sum is worth 1, so that the adder itself rounds.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// Returns the f32 in the first four of `bytes`, little-endian.
#[inline(always)]
pub(crate) fn read_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Returns the number in the lowest `bits` of a code, in two's complement.
#[inline(always)]
pub(crate) fn signed(code: u32, bits: usize) -> f32 {
    let unused = 32 - bits;
    ((code << unused) as i32 >> unused) as f32
}

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

/// Rounding of values to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Stochastic,
}

impl Scale {
    /// Scale of a code without scales.
    pub(crate) const NONE: Scale = Scale { scale: 1.0, inverse: 1.0 };

    /// Scale of a block that is sent as zeros.
    pub(crate) const ZERO: Scale = Scale { scale: 0.0, inverse: 0.0 };

    /// Returns the scale of a block whose largest magnitude has the bits `max_bits`; `None` if that is
    /// not finite.
    ///
    /// The scale is rounded down, such that the largest value still rounds to the largest code. For
    /// stochastic rounding the scale is rounded up, since clipping the largest value would be a bias.
    #[inline(always)]
    pub(crate) fn of(max_bits: u32, max_code: i32, rounding: Rounding) -> Option<Scale> {
        if max_bits >= INFINITY {
            return None;
        }
        let max = f32::from_bits(max_bits);
        if max < SMALLEST {
            return Some(Scale::ZERO);
        }
        let bits = (max / max_code as f32).to_bits();
        let mut scale = f32::from_bits(bits & !UNUSED);
        if rounding == Rounding::Stochastic {
            let above = f32::from_bits((bits + UNUSED) & !UNUSED);
            // Rounded up, the scale of the largest floats would decode to infinity.
            scale = if (above * max_code as f32).is_finite() { above } else { scale };
        }
        Some(Scale { scale, inverse: 1.0 / scale })
    }
}
