//! Blocks of codes of a fixed width: a [`Code`] defines their meaning.
//!
//! A block of 128 elements is its scale, an f32, where the code has one, then the codes as `planes`
//! packs them.

use std::fmt;

use thinwire_wire::random::Key;

use super::bits::{INFINITY, read_f32};
use super::levels::{SCALE_BYTES, Scale, random_group};
use super::planes::{self, BLOCK};
use super::scalar::{add, max_magnitude};
use crate::{Bound, Claims, Exchange, Finite, Input, Write};

/// Meaning of a code, and the claims of its codec.
pub(crate) trait Code: Copy + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Whether a block begins with its scale.
    const SCALED: bool = false;
    /// Whether encoding needs random numbers.
    const RANDOM: bool = false;

    /// Returns the bits of a code, 1 to 16. More than 8 are left to scalar loops.
    fn bits(&self) -> usize;

    /// Returns the scale of a block whose largest magnitude has the bits `max`, 1 for a code
    /// without scales, or none if one of the values cannot be held.
    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        (max < INFINITY).then_some(UNSCALED)
    }

    /// Returns the code of a value, of which only the lowest bits count. `random` has
    /// [`RANDOM_BITS`](super::RANDOM_BITS) random bits.
    fn code(&self, x: f32, scale: Scale, random: u32) -> u32;

    /// Returns the value of a code.
    fn value(&self, code: u32, scale: f32) -> f32;

    /// See [`Codec::exchange`](crate::Codec::exchange).
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    /// See [`Codec::needs_feedback`](crate::Codec::needs_feedback).
    fn needs_feedback(&self) -> bool;

    /// See [`Codec::bound`](crate::Codec::bound), for a block of `elements`, at least 1.
    fn bound(&self, elements: usize) -> Bound;

    /// See [`Codec::claims`](crate::Codec::claims).
    fn claims(&self) -> Claims;

    /// See [`Codec::canonicalise`](crate::Codec::canonicalise).
    fn canonicalise(&self, _values: &mut [f32]) {}
}

/// Scale of a code without scales.
pub(crate) const UNSCALED: Scale = Scale { scale: 1.0, inverse: 1.0 };

/// Returns the bytes of a block of `elements`.
pub(crate) fn block_len<C: Code>(code: C, elements: usize) -> usize {
    head::<C>() + planes::len(elements, code.bits())
}

/// Returns the bytes of the scale.
pub(super) fn head<C: Code>() -> usize {
    if C::SCALED { SCALE_BYTES } else { 0 }
}

pub(crate) fn encode<C: Code>(code: C, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
    encode_from(code, 0, input, key, output)
}

/// Encodes the blocks from number `first` on, which selects the random numbers.
pub(super) fn encode_from<C: Code>(
    code: C,
    first: u64,
    input: Input<'_>,
    key: Key,
    output: &mut [u8],
) -> Finite {
    let mut finite = Finite::Yes;
    let places = (first..).zip(output.chunks_mut(block_len(code, BLOCK)));
    match input {
        Input::Plain(values) => {
            for (values, (block, bytes)) in values.chunks(BLOCK).zip(places) {
                let encoded = encode_block(code, values, key, block, bytes);
                finite = finite.and(Finite::when(encoded.is_some()));
            }
        }
        Input::Feedback { values, residual } => {
            let values = values.chunks_mut(BLOCK).zip(residual.chunks(BLOCK));
            for ((values, residual), (block, bytes)) in values.zip(places) {
                add(values, residual);
                match encode_block(code, values, key, block, bytes) {
                    Some((codes, scale)) => {
                        let codes = values.iter_mut().zip(codes);
                        codes.for_each(|(x, own)| *x -= code.value(own, scale));
                    }
                    None => finite = Finite::No,
                }
            }
        }
    }
    finite
}

/// Encodes a block; returns codes and scale, or none if the values cannot be held.
fn encode_block<C: Code>(
    code: C,
    values: &[f32],
    key: Key,
    block: u64,
    bytes: &mut [u8],
) -> Option<([u32; BLOCK], f32)> {
    let scale = code.scale(values, max_magnitude(values));
    let packed = write_head::<C>(scale, bytes);
    let Some(scale) = scale else {
        packed.fill(0);
        return None;
    };
    let random = if C::RANDOM { random_group(key, block) } else { [0; BLOCK] };
    let (bits, mut codes) = (code.bits(), [0; BLOCK]);
    for ((own, x), random) in codes.iter_mut().zip(values).zip(random) {
        *own = code.code(*x, scale, random.into()) & ((1 << bits) - 1);
    }
    planes::pack(&codes, values.len(), bits, packed);
    Some((codes, scale.scale))
}

/// Writes the scale, NaN if there is none, where blocks begin with a scale; returns the other bytes.
#[inline(always)]
pub(super) fn write_head<C: Code>(scale: Option<Scale>, bytes: &mut [u8]) -> &mut [u8] {
    let (head, packed) = bytes.split_at_mut(head::<C>());
    if C::SCALED {
        let scale = scale.map_or(f32::NAN, |scale| scale.scale);
        head.copy_from_slice(&scale.to_le_bytes());
    }
    packed
}

/// Reads the scale of a block, 1 for a code without scales; returns the scale and the packed codes.
#[inline(always)]
pub(super) fn read_head<C: Code>(bytes: &[u8]) -> (f32, &[u8]) {
    let (head, packed) = bytes.split_at(head::<C>());
    (if C::SCALED { read_f32(head) } else { 1.0 }, packed)
}

pub(crate) fn decode<C: Code>(code: C, encoded: &[u8], write: Write, values: &mut [f32]) {
    let blocks = encoded.chunks(block_len(code, BLOCK));
    for (values, bytes) in values.chunks_mut(BLOCK).zip(blocks) {
        let (scale, packed) = read_head::<C>(bytes);
        let codes = planes::unpack(packed, values.len(), code.bits());
        let values = values.iter_mut().zip(codes);
        match write {
            Write::Set => values.for_each(|(x, own)| *x = code.value(own, scale)),
            Write::Add => values.for_each(|(x, own)| *x += code.value(own, scale)),
        }
    }
}
