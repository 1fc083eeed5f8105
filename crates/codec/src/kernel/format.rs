//! Number formats of single elements, as the scalar reference writes them.

use std::fmt::Debug;

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
        bytes.copy_from_slice(&f16_bits(value).to_le_bytes());
    }

    fn get(bytes: &[u8]) -> f32 {
        f16_value(u16::from_le_bytes([bytes[0], bytes[1]]))
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

/// Difference of the biases of the exponents, in the exponent field of f32.
const BIAS: u32 = (127 - 15) << 23;

fn f16_bits(value: f32) -> u16 {
    let magnitude = value.to_bits() & !SIGN;
    let half = if magnitude > INFINITY {
        0x7e00 | (magnitude >> 13 & 0x3ff)
    } else if magnitude >= F16::LIMIT {
        0x7c00
    } else if magnitude < BIAS + (1 << 23) {
        // Subnormal: the sum's last digit is worth 2^-24, and the adder rounds.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        (magnitude - BIAS + 0xfff + (magnitude >> 13 & 1)) >> 13
    };
    (value.to_bits() >> 16 & 0x8000 | half) as u16
}

fn f16_value(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let fraction = u32::from(bits & 0x3ff);
    let magnitude = match bits >> 10 & 0x1f {
        0 => (fraction as f32 / 16_777_216.0).to_bits(),
        31 if fraction == 0 => INFINITY,
        31 => INFINITY | 0x40_0000 | fraction << 13,
        _ => (u32::from(bits & 0x7fff) << 13) + BIAS,
    };
    f32::from_bits(sign | magnitude)
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
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_half_has_the_value_that_the_half_crate_gives() {
        for bits in 0..=u16::MAX {
            let (own, other) = (f16_value(bits), f16::from_bits(bits).to_f32());
            assert!(own.to_bits() == other.to_bits() || own.is_nan() && other.is_nan(), "{bits:x}");
            if !own.is_nan() {
                assert_eq!(f16_bits(own), bits);
            }
        }
    }

    proptest! {
        #[test]
        fn rounding_is_that_of_the_half_crate(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assert_eq!(f16_bits(value), f16::from_f32_const(value).to_bits());
            prop_assert_eq!(bf16_bits(value), bf16::from_f32(value).to_bits());
        }

        #[test]
        fn ties_go_to_even(bits in 0..0x7bffu16) {
            let (low, high) = (f16_value(bits), f16_value(bits + 1));
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            prop_assert_eq!(f16_bits(f32::midpoint(low, high)), even);
            prop_assert_eq!(f16_bits(-f32::midpoint(low, high)), even | 0x8000);
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
