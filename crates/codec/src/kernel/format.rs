//! Number formats of single elements, as the scalar reference writes them.

use std::fmt::Debug;

use half::f16;
use thinwire_wire::DType;

use super::bits::{INFINITY, SIGN, read_f32};

/// Number format with a fixed number of bytes per element, little-endian.
pub(crate) trait Format: Copy + Debug + Send + Sync + 'static {
    /// Element type of the encoding.
    const DTYPE: DType;
    /// Bytes per element.
    const BYTES: usize = Self::DTYPE.size();
    /// Bits of the smallest positive f32 that is not finite in this format.
    const LIMIT: u32;

    /// Writes a value, rounded to the nearest, ties to even.
    fn put(value: f32, bytes: &mut [u8]);

    /// Reads a value exactly, except that a signalling NaN becomes a quiet one.
    fn get(bytes: &[u8]) -> f32;
}

/// IEEE 754 binary32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32;
/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16;
/// The upper half of a binary32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BF16;

impl Format for F32 {
    const DTYPE: DType = DType::F32;
    const LIMIT: u32 = INFINITY;

    fn put(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> f32 {
        read_f32(bytes)
    }
}

impl Format for F16 {
    const DTYPE: DType = DType::F16;
    /// 65520, half-way between the largest f16 and the next power of two.
    const LIMIT: u32 = 0x477f_f000;

    fn put(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&f16::from_f32_const(value).to_le_bytes());
    }

    fn get(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32_const()
    }
}

impl Format for BF16 {
    const DTYPE: DType = DType::BF16;
    /// Half-way between the largest bf16 and the next power of two.
    const LIMIT: u32 = 0x7f7f_8000;

    fn put(value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bf16_bits(value).to_le_bytes());
    }

    fn get(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }
}

/// Rounds to the nearest bf16, ties to even.
#[inline(always)]
pub(crate) fn round_to_bf16(value: f32) -> f32 {
    f32::from_bits(u32::from(bf16_bits(value)) << 16)
}

#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if bits & !SIGN > INFINITY {
        return (bits >> 16 | 0x40) as u16;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bf16_is_rounded_as_by_the_half_crate(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assert_eq!(bf16_bits(value), half::bf16::from_f32(value).to_bits());
        }

        #[test]
        fn limits_are_the_smallest_that_overflow(bits: u32) {
            let value = f32::from_bits(bits & !SIGN);
            let mut bytes = [0; 2];
            F16::put(value, &mut bytes);
            prop_assert_eq!(F16::get(&bytes).is_finite(), value.to_bits() < F16::LIMIT);
            BF16::put(value, &mut bytes);
            prop_assert_eq!(BF16::get(&bytes).is_finite(), value.to_bits() < BF16::LIMIT);
        }
    }
}
