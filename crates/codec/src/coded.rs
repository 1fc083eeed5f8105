//! Codecs that write every element of a block of 128 as a code of a fixed width.
//!
//! A [`Code`] says what a code means, in a few lines; blocks, packing (see `planes`), residuals and
//! random numbers are those of `kernel::codes`.

use std::fmt;

use thinwire_wire::random::Key;

use crate::kernel::{self, Coder, Kernels, Scale, block_len};
use crate::planes::BLOCK;
use crate::{Bound, Choice, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// What a code means, and what is said of its codec.
pub(crate) trait Code: Copy + fmt::Display + Send + Sync + 'static {
    /// Whether a block begins with its scale.
    const SCALED: bool;
    /// Whether it needs random numbers.
    const RANDOM: bool;

    /// Bits of a code, 1 to 16; with more than 8 it is left to scalar loops.
    fn bits(&self) -> usize;

    /// The scale of a block whose largest magnitude has the bits `largest`; none if one of its values
    /// cannot be held. Without a scale of its own a code says 1.
    fn scale(&self, values: &[f32], largest: u32) -> Option<Scale>;

    /// The code of a value, of which only the lowest bits count; `random` has
    /// [`kernel::RANDOM_BITS`] random bits.
    fn code(&self, x: f32, scale: Scale, random: u32) -> u32;

    /// The value of a code.
    fn value(&self, code: u32, scale: f32) -> f32;

    /// See [`Codec::exchange`].
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    /// See [`Codec::needs_feedback`].
    fn needs_feedback(&self) -> bool;

    /// See [`Codec::bound`], for a block of `elements`, of which there is at least one.
    fn bound(&self, elements: usize) -> Bound;

    /// See [`Codec::claims`].
    fn claims(&self) -> Claims;

    /// See [`Codec::settle`].
    fn settle(&self, _values: &mut [f32]) {}
}

/// The scale of a code without one.
pub(crate) const UNSCALED: Scale = Scale { scale: 1.0, inverse: 1.0 };

/// The codec of a [`Code`].
pub(crate) struct Coded<C: Code> {
    code: C,
    kernel: fn(&Kernels) -> &Coder<C>,
}

impl<C: Code> Coded<C> {
    /// The codec of a code whose loops `kernel` picks.
    pub(crate) fn choice(code: C, kernel: fn(&Kernels) -> &Coder<C>) -> Choice {
        Choice::bytes(Coded::new(code, kernel))
    }

    pub(crate) fn new(code: C, kernel: fn(&Kernels) -> &Coder<C>) -> Coded<C> {
        Coded { code, kernel }
    }
}

impl<C: Code> fmt::Debug for Coded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coded({})", self.code)
    }
}

impl<C: Code> fmt::Display for Coded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)
    }
}

impl<C: Code> Codec for Coded<C> {
    fn exchange(&self) -> Exchange {
        self.code.exchange()
    }

    fn needs_feedback(&self) -> bool {
        self.code.needs_feedback()
    }

    fn bound(&self, elements: usize) -> Bound {
        self.code.bound(elements.clamp(1, BLOCK))
    }

    fn claims(&self) -> Claims {
        self.code.claims()
    }

    fn settle(&self, values: &mut [f32]) {
        self.code.settle(values);
    }

    fn block(&self) -> usize {
        BLOCK
    }

    fn encoded_len(&self, elements: usize) -> usize {
        let (blocks, rest) = (elements / BLOCK, elements % BLOCK);
        let rest = if rest == 0 { 0 } else { block_len(self.code, rest) };
        blocks * block_len(self.code, BLOCK) + rest
    }

    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        ((self.kernel)(kernel::imp()).encode)(self.code, input, key, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        ((self.kernel)(kernel::imp()).decode)(self.code, encoded, write, values);
        Ok(())
    }
}

/// To nearest, ties to even, for magnitudes below 2^22: the adder rounds.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// The sign bit of an f32.
pub(crate) const SIGN: u32 = 1 << 31;

/// The bits of infinity.
pub(crate) const INFINITY: u32 = 0x7f80_0000;
