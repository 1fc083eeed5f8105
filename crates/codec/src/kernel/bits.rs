//! Bit patterns of f32 that several loops need.

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

/// The f32 in the first four of `bytes`, little-endian.
#[inline(always)]
pub(crate) fn read_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The number in the lowest `bits` of a code, in two's complement.
#[inline(always)]
pub(crate) fn signed(code: u32, bits: usize) -> f32 {
    let unused = 32 - bits;
    ((code << unused) as i32 >> unused) as f32
}
