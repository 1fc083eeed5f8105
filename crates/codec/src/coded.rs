//! Codecs that write every element of a block of 128 as a code of a fixed width.
//!
//! A [`Code`] says what a code means, in a few lines; blocks, packing (see `planes`), residuals and
//! random numbers are here. A block is its scale, an f32, where the code has one, then the codes.

use std::fmt;

use thinwire_wire::random::Key;

use crate::kernel::{self, GROUP, SCALE_BYTES, Scale, Work, wide};
use crate::planes::{self, BLOCK};
use crate::{Bound, Choice, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// What a code means. Whatever is called for every element is to be marked `#[inline(always)]`.
pub(crate) trait Code: Copy + fmt::Display + Send + Sync + 'static {
    /// Whether a block begins with its scale.
    const SCALED: bool;
    /// Whether it needs random numbers.
    const RANDOM: bool;

    /// Bits of a code, 1 to 16.
    fn bits(&self) -> usize;

    /// The scale of a block; none if one of its values cannot be held. Without a scale of its own a
    /// code says 1.
    fn scale(&self, values: &[f32]) -> Option<Scale>;

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
#[derive(Clone, Copy)]
pub(crate) struct Coded<C>(C);

impl<C: Code> Coded<C> {
    pub(crate) fn choice(code: C) -> Choice {
        Choice::bytes(Coded(code))
    }

    pub(crate) fn new(code: C) -> Coded<C> {
        Coded(code)
    }

    fn head(&self) -> usize {
        if C::SCALED { SCALE_BYTES } else { 0 }
    }

    fn block_len(&self, elements: usize) -> usize {
        self.head() + planes::len(elements, self.0.bits())
    }
}

impl<C: Code> fmt::Debug for Coded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coded({})", self.0)
    }
}

impl<C: Code> fmt::Display for Coded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<C: Code> Codec for Coded<C> {
    fn exchange(&self) -> Exchange {
        self.0.exchange()
    }

    fn needs_feedback(&self) -> bool {
        self.0.needs_feedback()
    }

    fn bound(&self, elements: usize) -> Bound {
        self.0.bound(elements.clamp(1, BLOCK))
    }

    fn claims(&self) -> Claims {
        self.0.claims()
    }

    fn settle(&self, values: &mut [f32]) {
        self.0.settle(values);
    }

    fn block(&self) -> usize {
        BLOCK
    }

    fn encoded_len(&self, elements: usize) -> usize {
        let (blocks, rest) = (elements / BLOCK, elements % BLOCK);
        let rest = if rest == 0 { 0 } else { self.block_len(rest) };
        blocks * self.block_len(BLOCK) + rest
    }

    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        wide(Encode { codec: *self, input, key, output })
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        wide(Decode { codec: *self, encoded, write, values });
        Ok(())
    }
}

struct Encode<'a, C> {
    codec: Coded<C>,
    input: Input<'a>,
    key: Key,
    output: &'a mut [u8],
}

impl<C: Code> Work for Encode<'_, C> {
    type Output = Finite;

    #[inline(always)]
    fn run(self) -> Finite {
        let Encode { codec, input, key, output } = self;
        let mut finite = Finite::Yes;
        let places = (0..).zip(output.chunks_mut(codec.block_len(BLOCK)));
        match input {
            Input::Plain(values) => {
                for (values, (block, bytes)) in values.chunks(BLOCK).zip(places) {
                    let encoded = codec.encode_block(values, key, block, bytes);
                    finite = finite.and(Finite::when(encoded.is_some()));
                }
            }
            Input::Feedback { values, residual } => {
                let values = values.chunks_mut(BLOCK).zip(residual.chunks(BLOCK));
                for ((values, residual), (block, bytes)) in values.zip(places) {
                    values.iter_mut().zip(residual).for_each(|(x, residual)| *x += residual);
                    match codec.encode_block(values, key, block, bytes) {
                        Some((codes, scale)) => {
                            let codes = values.iter_mut().zip(codes);
                            codes.for_each(|(x, code)| *x -= codec.0.value(code, scale));
                        }
                        None => finite = Finite::No,
                    }
                }
            }
        }
        finite
    }
}

impl<C: Code> Coded<C> {
    /// Encodes a block; gives back what was written, or none if it cannot be held.
    #[inline(always)]
    fn encode_block(
        &self,
        values: &[f32],
        key: Key,
        block: u64,
        bytes: &mut [u8],
    ) -> Option<([u32; BLOCK], f32)> {
        let scale = self.0.scale(values);
        let (head, packed) = bytes.split_at_mut(self.head());
        if C::SCALED {
            let scale = scale.map_or(f32::NAN, |scale| scale.scale);
            head.copy_from_slice(&scale.to_le_bytes());
        }
        let Some(scale) = scale else {
            packed.fill(0);
            return None;
        };
        let random = if C::RANDOM { (kernel::imp().random)(key, block) } else { [0; GROUP] };
        let (bits, mut codes) = (self.0.bits(), [0; BLOCK]);
        let mask = (1 << bits) - 1;
        for ((code, x), random) in codes.iter_mut().zip(values).zip(random) {
            *code = self.0.code(*x, scale, random) & mask;
        }
        planes::pack(&codes, values.len(), bits, packed);
        Some((codes, scale.scale))
    }
}

struct Decode<'a, C> {
    codec: Coded<C>,
    encoded: &'a [u8],
    write: Write,
    values: &'a mut [f32],
}

impl<C: Code> Work for Decode<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Decode { codec, encoded, write, values } = self;
        let blocks = encoded.chunks(codec.block_len(BLOCK));
        for (values, bytes) in values.chunks_mut(BLOCK).zip(blocks) {
            let (head, packed) = bytes.split_at(codec.head());
            let scale = head.first_chunk().map_or(1.0, |head| f32::from_le_bytes(*head));
            let codes = planes::unpack(packed, values.len(), codec.0.bits());
            let values = values.iter_mut().zip(codes);
            match write {
                Write::Set => values.for_each(|(x, code)| *x = codec.0.value(code, scale)),
                Write::Add => values.for_each(|(x, code)| *x += codec.0.value(code, scale)),
            }
        }
    }
}

/// The largest magnitude as bits, with which infinity and NaN are above all numbers.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> u32 {
    values.iter().fold(0, |largest, x| largest.max(x.to_bits() & !SIGN))
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
