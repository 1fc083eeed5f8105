//! Random rounding to powers of two: one byte per element.
//!
//! Horváth et al., "Natural compression for distributed deep learning" (2019, section 2): a value becomes
//! one of the two neighbouring powers of two, with probabilities that make it unbiased. The sign is in
//! the highest bit, the exponent plus 101 in the other seven: powers from 2^-100 to 2^26, and 0. Smaller
//! values are sent as 0; the codec cannot hold larger ones.
//!
//! Law: powers of two are exact, and a value at most doubles or halves.

use crate::choice::{Entry, without_parameter};
use crate::coded::Coded;
use crate::kernel::bits::SIGN;
use crate::kernel::codes::Code;
use crate::kernel::{RANDOM_BITS, Scale};
use crate::{Bound, Claims};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "natural",
    summary: "random rounding to powers of two, 1 byte per element",
    examples: &["natural"],
    parse: |parameter| without_parameter("natural", parameter, Coded(Natural)),
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Natural;

/// Binary digits of an f32 behind the point.
pub(crate) const DIGITS: u32 = 23;
/// Exponent of an f32 whose code is 0.
pub(crate) const ZERO: u32 = 127 - 101;
/// Bits of the largest power of two.
const MAX: u32 = (ZERO + 127) << DIGITS;

impl Code for Natural {
    const RANDOM: bool = true;

    fn name(&self) -> String {
        "natural".to_owned()
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        8
    }

    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        (max <= MAX).then_some(Scale::NONE)
    }

    #[inline(always)]
    fn code(&self, x: f32, _scale: Scale, random: u32) -> u32 {
        // The digits behind the point are the probability of the next power: their sum with random
        // digits carries into the exponent that often, and never where all digits are 0.
        let unused = DIGITS - RANDOM_BITS;
        let sum = (x.to_bits() & !SIGN) + (random << unused | 1 << (unused - 1));
        let small = x.abs() < f32::from_bits((ZERO + 1) << DIGITS);
        let exponent = if small { 0 } else { (sum >> DIGITS).wrapping_sub(ZERO) };
        x.to_bits() >> 24 & 0x80 | exponent
    }

    #[inline(always)]
    fn value(&self, code: u32, _scale: f32) -> f32 {
        let exponent = code & 0x7f;
        let magnitude = if exponent == 0 { 0 } else { (exponent + ZERO) << DIGITS };
        f32::from_bits(magnitude | code << 24 & SIGN)
    }

    fn bound(&self, _elements: usize) -> Bound {
        // Between 1 and 2 the variance of x is (x - 1) (2 - x), at most an eighth of x².
        Bound::Variance(0.125)
    }

    fn claims(&self) -> Claims {
        // Value and decoded value are within a factor of two, so their difference is exact.
        Claims { idempotent: true, exact: true, ..Claims::RANDOM }
    }
}
