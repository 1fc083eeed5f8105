//! Small integers under one scale per block.
//!
//! `int8`, `int4` and `int3`. Integers that are rounded to nearest need feedback, because the same error
//! may occur in every step. Integers that are rounded stochastically are unbiased and need no feedback:
//! the errors of ranks and steps are independent and average out.

use crate::choice::{Choice, Entry};
use crate::coded::Coded;
use crate::kernel::bits::{round, signed};
use crate::kernel::codes::Code;
use crate::kernel::group::Layout;
use crate::kernel::{RANDOM_BITS, Rounding, Scale};
use crate::least_squares::LeastSquares;
use crate::{Bound, Claims, Error};

/// One byte per element and one scale per 256: 8.125 bits, errors of at most 1/254 of the largest
/// magnitude.
pub(crate) const INT8: Entry = Entry {
    usage: "int8[:stochastic]",
    summary: "255 levels, 260 bytes per 256 elements",
    examples: &["int8", "int8:stochastic"],
    parse: parse::<8>,
};

/// Half a byte per element and one scale per 128: 4.25 bits, errors of at most 1/14 of the largest
/// magnitude.
pub(crate) const INT4: Entry = Entry {
    usage: "int4[:stochastic|:least-squares]",
    summary: "15 levels, 68 bytes per 128 elements",
    examples: &["int4", "int4:stochastic", "int4:least-squares"],
    parse: parse::<4>,
};

/// Three bits per element and one scale per 128: 3.25 bits, errors of at most 1/6 of the largest
/// magnitude.
pub(crate) const INT3: Entry = Entry {
    usage: "int3[:stochastic|:least-squares]",
    summary: "7 levels, 52 bytes per 128 elements",
    examples: &["int3", "int3:stochastic", "int3:least-squares"],
    parse: parse::<3>,
};

/// Integers of `BITS` bits (3, 4 or 8), rounded to the nearest or, if `STOCHASTIC`, at random and
/// unbiased.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ints<const BITS: usize, const STOCHASTIC: bool>;

/// Returns the codec of integers of `BITS` bits, with the rounding that `parameter` names.
pub(crate) fn parse<const BITS: usize>(parameter: Option<&str>) -> Result<Choice, Error> {
    match parameter {
        None | Some("nearest") => Ok(Choice::bytes(Coded(Ints::<BITS, false>))),
        Some("stochastic") => Ok(Choice::bytes(Coded(Ints::<BITS, true>))),
        // With 255 levels the scale of least squares is the usual one.
        Some("least-squares") if BITS < 8 => Ok(Choice::bytes(Coded(LeastSquares::<BITS>))),
        _ => {
            let what = format!("int{BITS} rounding");
            let expected = match BITS {
                8 => "'nearest' or 'stochastic'",
                _ => "'nearest', 'stochastic' or 'least-squares'",
            };
            Err(Error::parameter(&what, parameter, expected))
        }
    }
}

impl<const BITS: usize, const STOCHASTIC: bool> Ints<BITS, STOCHASTIC> {
    /// Largest code.
    pub(crate) const MAX: i32 = (1 << (BITS - 1)) - 1;
}

impl<const BITS: usize, const STOCHASTIC: bool> Code for Ints<BITS, STOCHASTIC> {
    const SCALED: bool = true;
    const RANDOM: bool = STOCHASTIC;
    const GROUPS: usize = if BITS == 8 { 2 } else { 1 };
    const LAYOUT: Layout = match BITS {
        8 => Layout::Planes,
        4 => Layout::Lanes,
        _ => Layout::Three,
    };

    fn name(&self) -> String {
        format!("int{BITS}{}", if STOCHASTIC { ":stochastic" } else { "" })
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        BITS
    }

    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        let rounding = if STOCHASTIC { Rounding::Stochastic } else { Rounding::Nearest };
        Scale::of(max, Self::MAX, rounding)
    }

    #[inline(always)]
    fn code(&self, x: f32, scale: Scale, random: u32) -> u32 {
        if !STOCHASTIC {
            return round(x * scale.inverse) as u32;
        }
        // Rounds up with the probability that makes the mean right: the digits behind the point and
        // random ones carry.
        let digits = round(x * (scale.inverse * (1 << RANDOM_BITS) as f32));
        ((digits + random as i32) >> RANDOM_BITS).min(Self::MAX) as u32
    }

    #[inline(always)]
    fn value(&self, code: u32, scale: f32) -> f32 {
        signed(code, BITS) * scale
    }

    fn bound(&self, elements: usize) -> Bound {
        // At worst one element is the largest and all others lie half-way between two codes.
        let others = (elements - 1) as f64;
        let steps = f64::from(2 * Self::MAX).powi(2);
        match STOCHASTIC {
            false => Bound::Contraction(steps / (steps + others)),
            // Rounding up with probability p has the variance p (1 - p), at most a quarter.
            true => Bound::Variance(others / steps),
        }
    }

    fn claims(&self) -> Claims {
        if STOCHASTIC { Claims::RANDOM } else { Claims::ALL }
    }
}
