//! Operations on 16 elements at once, and the way of formats and codes through them.

use super::source::{Source, sum_block};
use crate::kernel::bits::Scale;
use crate::kernel::codes::{Code, block};
use crate::kernel::format::{BF16, F16, F32, Format};
use crate::kernel::group::LANES;

/// Instructions on sixteen f32 (`F`) or i32 (`I`) at once.
pub(crate) trait Lanes {
    type F: Copy;
    type I: Copy;

    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, x: Self::F);
    unsafe fn load_f16(from: *const u8) -> Self::F;
    unsafe fn store_f16(to: *mut u8, x: Self::F);
    unsafe fn load_bf16(from: *const u8) -> Self::F;
    unsafe fn store_bf16(to: *mut u8, x: Self::F);
    /// Sign-extends 16 bytes.
    unsafe fn load_i8(from: *const u8) -> Self::I;
    /// Writes the lowest byte of each lane.
    unsafe fn store_bytes(to: *mut u8, x: Self::I);
    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// Rounds to the nearest, ties to even.
    unsafe fn round(x: Self::F) -> Self::I;
    unsafe fn float(x: Self::I) -> Self::F;
    /// Clears the sign bits.
    unsafe fn magnitude(x: Self::F) -> Self::I;
    unsafe fn bits(x: Self::F) -> Self::I;
    unsafe fn from_bits(x: Self::I) -> Self::F;
    unsafe fn splat_int(x: u32) -> Self::I;
    /// Returns `i` in lane `i`.
    unsafe fn iota() -> Self::I;
    unsafe fn add_int(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_int(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shift_left<const N: u32>(x: Self::I) -> Self::I;
    /// Shifts in zeros.
    unsafe fn shift_right<const N: u32>(x: Self::I) -> Self::I;
    /// Shifts in the sign.
    unsafe fn shift_right_signed<const N: u32>(x: Self::I) -> Self::I;
    /// Shifts in zeros, by a count per lane.
    unsafe fn shift_right_by(x: Self::I, counts: Self::I) -> Self::I;
    unsafe fn min(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn max(a: Self::I, b: Self::I) -> Self::I;
    /// Returns the largest lane.
    unsafe fn max_lane(x: Self::I) -> u32;
    /// Returns the upper and the lower half of unsigned products.
    unsafe fn mul_wide(a: Self::I, b: Self::I) -> (Self::I, Self::I);
    /// Returns the numbers at indices, all of which are in the table.
    unsafe fn gather(table: &[f32; 128], index: Self::I) -> Self::F;
    /// Returns the integers at indices, all of which are in the table.
    unsafe fn gather_int(table: *const u32, index: Self::I) -> Self::I;
    /// Shifts lanes above `most` right by 16, and writes the digits that they lose before `end`, in the
    /// order of the lanes; returns how many lanes that were. 32 bytes before `end` are writable, and
    /// undefined where no word is.
    unsafe fn put_words(x: Self::I, most: Self::I, end: *mut u8) -> (Self::I, usize);
    /// Shifts lanes below `least` left by 16, and adds the next words to them, in the order of the
    /// lanes; returns how many lanes that were. 32 bytes are readable.
    unsafe fn take_words(x: Self::I, least: u32, from: *const u8) -> (Self::I, usize);
    /// Returns in bit `i` whether lane `i` of `a` is above that of `b`; no lane is negative.
    unsafe fn above(a: Self::I, b: Self::I) -> u16;
}

/// A format whose elements go to memory and back 16 at a time.
pub(crate) trait FormatLanes: Format {
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F;
    unsafe fn store<L: Lanes>(to: *mut u8, x: L::F);
}

impl FormatLanes for F32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F {
        L::load(from.cast())
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut u8, x: L::F) {
        L::store(to.cast(), x)
    }
}

impl FormatLanes for F16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F {
        L::load_f16(from)
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut u8, x: L::F) {
        L::store_f16(to, x)
    }
}

impl FormatLanes for BF16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F {
        L::load_bf16(from)
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut u8, x: L::F) {
        L::store_bf16(to, x)
    }
}

/// A code whose values are computed 16 at a time, with the bits of [`Code`]. In both directions only
/// the lowest bits of a code count.
pub(crate) trait CodeLanes: Code {
    /// Adds the residual to a whole block; returns what [`Code::scale`] gives for it.
    #[inline(always)]
    unsafe fn block_scale<L: Lanes, const FEEDBACK: bool>(
        &self,
        source: Source,
        first: usize,
    ) -> Option<Scale> {
        let max = sum_block::<L, FEEDBACK>(source, first, block::<Self>());
        let values = std::slice::from_raw_parts(source.values.add(first), block::<Self>());
        self.scale(values, max)
    }

    /// Computes codes of [`Code::code`], by default in a loop that the compiler makes vectors of.
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, random: L::I) -> L::I {
        let (mut values, mut words) = ([0.0; LANES], [0; LANES]);
        L::store(values.as_mut_ptr(), x);
        L::store(words.as_mut_ptr().cast(), L::from_bits(random));
        for lane in 0..LANES {
            words[lane] = self.code(values[lane], scale, words[lane]);
        }
        L::bits(L::load(words.as_ptr().cast()))
    }

    /// Computes the values of codes like [`CodeLanes::codes`].
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, codes: L::I, scale: f32) -> L::F {
        let (mut words, mut values) = ([0; LANES], [0.0; LANES]);
        L::store(words.as_mut_ptr().cast(), L::from_bits(codes));
        for lane in 0..LANES {
            values[lane] = self.value(words[lane], scale);
        }
        L::load(values.as_ptr())
    }
}
