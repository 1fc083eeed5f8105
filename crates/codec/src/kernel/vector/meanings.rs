//! Meanings of all codes, for 16 elements at once: written out where vectors of the compiler are slower.
//!
//! Comparisons are signs of differences: where a difference is negative, a shift spreads its sign
//! over all bits, and these choose between two values.

use super::lanes::{CodeLanes, Lanes};
use super::source::Source;
use crate::dynamic8::{self, Dynamic8};
use crate::float8::Float8;
use crate::ints::Ints;
use crate::intsgd::IntSgd;
use crate::kernel::bits::{INFINITY, SIGN, Scale};
use crate::kernel::codes::Code;
use crate::kernel::group::{GROUP, LANES, RANDOM_BITS};
use crate::kernel::scalar::{SUMS, halved};
use crate::least_squares::LeastSquares;
use crate::natural::{self, Natural};
use crate::qsgd::Levels;
use crate::signs::{self, SHARE, Signs};
use crate::tbq::Threshold;
use crate::vote::Vote;

/// Returns all bits where `x` is below `limit`, else none; the difference must not overflow.
#[inline(always)]
unsafe fn below<L: Lanes>(x: L::I, limit: u32) -> L::I {
    L::shift_right_signed::<31>(L::add_int(x, L::splat_int(limit.wrapping_neg())))
}

/// Returns `a` where the mask has all bits, `b` where it has none.
#[inline(always)]
unsafe fn choose<L: Lanes>(mask: L::I, a: L::I, b: L::I) -> L::I {
    L::xor(b, L::and(mask, L::xor(a, b)))
}

/// Moves bit 7 to the sign bit.
#[inline(always)]
unsafe fn sign<L: Lanes>(codes: L::I) -> L::I {
    L::and(L::shift_left::<24>(codes), L::splat_int(SIGN))
}

/// Reads codes of `bits` bits as two's complement: the upper half of all codes is negative.
#[inline(always)]
unsafe fn signed<L: Lanes>(codes: L::I, bits: usize) -> L::I {
    let half = 1u32 << (bits - 1);
    let own = L::and(codes, L::splat_int(2 * half - 1));
    L::add_int(L::xor(own, L::splat_int(half)), L::splat_int(half.wrapping_neg()))
}

impl<const BITS: usize, const STOCHASTIC: bool> CodeLanes for Ints<BITS, STOCHASTIC> {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, random: L::I) -> L::I {
        if !STOCHASTIC {
            return L::round(L::mul(x, L::splat(scale.inverse)));
        }
        let digits = L::splat(scale.inverse * (1 << RANDOM_BITS) as f32);
        let sum = L::add_int(L::round(L::mul(x, digits)), random);
        L::min(L::shift_right_signed::<RANDOM_BITS>(sum), L::splat_int(Self::MAX as u32))
    }
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, codes: L::I, scale: f32) -> L::F {
        // Bytes are read with their signs.
        let codes = if BITS == 8 { codes } else { signed::<L>(codes, BITS) };
        L::mul(L::float(codes), L::splat(scale))
    }
}

impl<const BITS: usize> CodeLanes for LeastSquares<BITS> {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, random: L::I) -> L::I {
        Ints::<BITS, false>.codes::<L>(x, scale, random)
    }
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, codes: L::I, scale: f32) -> L::F {
        Ints::<BITS, false>.values::<L>(codes, scale)
    }
}

impl<const BITS: usize> CodeLanes for Signs<BITS> {
    #[inline(always)]
    unsafe fn block_scale<L: Lanes, const FEEDBACK: bool>(
        &self,
        source: Source,
        first: usize,
    ) -> Option<Scale> {
        let mut sums = [L::splat(0.0); SUMS / LANES];
        for at in (first..first + GROUP).step_by(SUMS) {
            for (half, sum) in sums.iter_mut().enumerate() {
                let at = at + half * LANES;
                let x = source.load::<L, FEEDBACK>(at);
                if FEEDBACK {
                    L::store(source.values.add(at), x);
                }
                *sum = L::add(*sum, L::mul(L::from_bits(L::magnitude(x)), L::splat(SHARE)));
            }
        }
        let mut lanes = [0.0; SUMS];
        for (half, sum) in sums.into_iter().enumerate() {
            L::store(lanes.as_mut_ptr().add(half * LANES), sum);
        }
        Self::unit(halved(lanes), GROUP)
    }
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, _random: L::I) -> L::I {
        let sign = L::shift_right::<31>(L::bits(x));
        if BITS == 1 {
            return sign;
        }
        // Negative where the magnitude is above the largest that counts as one unit: most - x.
        let most = L::splat_int(signs::middle(scale.scale).wrapping_add(1));
        let minus = L::xor(L::magnitude(x), L::splat_int(u32::MAX));
        let large = L::shift_right::<30>(L::add_int(most, minus));
        L::or(sign, L::and(large, L::splat_int(2)))
    }
}

impl CodeLanes for Vote {}

impl CodeLanes for Threshold {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, _scale: Scale, _random: L::I) -> L::I {
        let small = below::<L>(L::magnitude(x), self.tau.to_bits());
        let sign = L::or(L::shift_right_signed::<31>(L::bits(x)), L::splat_int(1));
        choose::<L>(small, L::splat_int(0), sign)
    }
}

impl CodeLanes for Levels {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, random: L::I) -> L::I {
        let digits = L::splat(scale.inverse * (1 << RANDOM_BITS) as f32);
        let min = -(self.levels() << RANDOM_BITS);
        // Magnitudes are far below 2^31 after rounding, so clipping can follow.
        let rounded = L::max(L::round(L::mul(x, digits)), L::splat_int(min as u32));
        let floor = L::shift_right_signed::<RANDOM_BITS>(L::add_int(rounded, random));
        L::min(floor, L::splat_int(self.levels() as u32))
    }
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, codes: L::I, scale: f32) -> L::F {
        L::mul(L::float(signed::<L>(codes, self.bits())), L::splat(scale))
    }
}

impl CodeLanes for IntSgd {}

impl CodeLanes for Natural {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, _scale: Scale, random: L::I) -> L::I {
        const UNUSED: u32 = natural::DIGITS - RANDOM_BITS;
        let magnitude = L::magnitude(x);
        let digits = L::or(L::shift_left::<UNUSED>(random), L::splat_int(1 << (UNUSED - 1)));
        let sum = L::shift_right::<{ natural::DIGITS }>(L::add_int(magnitude, digits));
        let exponent = L::add_int(sum, L::splat_int(natural::ZERO.wrapping_neg()));
        let small = below::<L>(magnitude, (natural::ZERO + 1) << natural::DIGITS);
        let sign = L::and(L::shift_right::<24>(L::bits(x)), L::splat_int(0x80));
        L::or(sign, choose::<L>(small, L::splat_int(0), exponent))
    }
}

impl<const DIGITS: u32> CodeLanes for Float8<DIGITS> {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, _random: L::I) -> L::I {
        let y = L::mul(x, L::splat(scale.inverse));
        let magnitude = L::magnitude(y);
        let min_normal = (128 - Self::BIAS) << 23;
        let exponent = L::and(magnitude, L::splat_int(INFINITY));
        let exponent = L::max(exponent, L::splat_int(min_normal));
        // The adder rounds: `large` is so much larger that the sum keeps only the digits of the code.
        let large = L::from_bits(L::add_int(exponent, L::splat_int(Self::CUT << 23)));
        let sum = L::bits(L::add(L::from_bits(magnitude), large));
        let digits = L::and(sum, L::splat_int((1 << 23) - 1));
        let steps = L::add_int(cut::<L, DIGITS>(exponent), digits);
        let code = L::add_int(steps, L::splat_int((min_normal >> Self::CUT).wrapping_neg()));
        L::or(code, L::and(L::shift_right::<24>(L::bits(y)), L::splat_int(0x80)))
    }
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, codes: L::I, scale: f32) -> L::F {
        let own = L::and(codes, L::splat_int(0x7f));
        let bits = if DIGITS == 3 { L::shift_left::<20>(own) } else { L::shift_left::<21>(own) };
        let normal = L::add_int(bits, L::splat_int((127 - Self::BIAS) << 23));
        // With the smallest exponent, the code is a multiple of the step.
        let small = L::bits(L::mul(L::float(own), L::splat(Self::STEP)));
        let magnitude = choose::<L>(below::<L>(own, 1 << DIGITS), small, normal);
        L::mul(L::from_bits(L::or(magnitude, sign::<L>(codes))), L::splat(scale))
    }
}

/// Drops the digits that a code does not have.
#[inline(always)]
unsafe fn cut<L: Lanes, const DIGITS: u32>(x: L::I) -> L::I {
    if DIGITS == 3 { L::shift_right::<20>(x) } else { L::shift_right::<21>(x) }
}

impl CodeLanes for Dynamic8 {
    #[inline(always)]
    unsafe fn codes<L: Lanes>(&self, x: L::F, scale: Scale, _random: L::I) -> L::I {
        // All numbers are positive, or replaced by 0, so their bits are ordered like the numbers.
        let y = L::from_bits(L::magnitude(L::mul(x, L::splat(scale.inverse))));
        let (mut place, mut last) = (L::splat_int(0), L::splat_int(0));
        for (decade, (start, first, per_unit)) in dynamic8::STARTS.into_iter().enumerate() {
            let codes = (1 << decade) as f32;
            let within = L::mul(L::sub(y, L::splat(first)), L::splat(per_unit));
            let within = L::from_bits(L::max(L::bits(within), L::splat_int(0)));
            let own = L::bits(L::add(L::splat(codes), within));
            let outside = below::<L>(L::bits(y), start.to_bits());
            place = choose::<L>(outside, place, own);
            last = choose::<L>(outside, last, L::splat_int((2.0 * codes - 1.0).to_bits()));
        }
        let code = L::round(L::from_bits(L::min(place, last)));
        let negative = L::shift_right_signed::<31>(L::bits(x));
        let one = L::shift_right::<31>(negative);
        L::add_int(L::xor(code, negative), one)
    }
    #[inline(always)]
    unsafe fn values<L: Lanes>(&self, codes: L::I, scale: f32) -> L::F {
        let code = L::shift_right_signed::<24>(L::shift_left::<24>(codes));
        let negative = L::shift_right_signed::<31>(code);
        let index = L::add_int(L::xor(code, negative), L::shift_right::<31>(negative));
        let index = L::and(index, L::splat_int(0x7f));
        let magnitude = L::mul(L::gather(&dynamic8::MAGNITUDES, index), L::splat(scale));
        let sign = L::and(L::bits(L::from_bits(negative)), L::splat_int(SIGN));
        L::from_bits(L::xor(L::bits(magnitude), sign))
    }
}
