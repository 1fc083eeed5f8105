//! Blocks of codes of a fixed width: a [`Code`] defines their meaning.
//!
//! A block is its scale, an f32, where the code has one, then the codes of its groups of 128 elements
//! as a `Layout` packs them.

use std::fmt;

use thinwire_wire::random::Key;

use super::bits::{INFINITY, SCALE_BYTES, Scale, read_f32};
use super::group::{GROUP, Group, Layout, random};
use super::scalar::{add, max_magnitude};
use crate::{Bound, Claims, Exchange, Finite, Input, Write};

/// Meaning of a code, and the claims of its codec.
pub(crate) trait Code: Copy + fmt::Debug + Send + Sync + 'static {
    /// Whether a block begins with its scale.
    const SCALED: bool = false;
    /// Whether encoding needs random numbers.
    const RANDOM: bool = false;
    /// Groups of 128 elements under one scale.
    const GROUPS: usize = 1;
    /// Order of bits.
    const LAYOUT: Layout = Layout::Planes;

    /// Returns the name of the codec, as [`Choice::parse`](crate::Choice::parse) reads it.
    fn name(&self) -> String;

    /// Returns the bits of a code, 1 to 16. More than 8 are left to scalar loops.
    fn bits(&self) -> usize;

    /// Returns the scale of a block whose largest magnitude has the bits `max`, 1 for a code
    /// without scales, or `None` if one of the values cannot be held.
    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        (max < INFINITY).then_some(Scale::NONE)
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

    /// See [`Codec::needs_feedback`](crate::Codec::needs_feedback): codes that contract are biased.
    fn needs_feedback(&self) -> bool {
        matches!(self.bound(1), Bound::Contraction(_))
    }

    /// See [`Codec::bound`](crate::Codec::bound), for a block of `elements`, at least 1.
    fn bound(&self, elements: usize) -> Bound;

    /// See [`Codec::claims`](crate::Codec::claims).
    fn claims(&self) -> Claims {
        Claims::ALL
    }

    /// See [`Codec::canonicalise`](crate::Codec::canonicalise).
    fn canonicalise(&self, _values: &mut [f32]) {}
}

/// Returns the elements of a block.
pub(crate) const fn block<C: Code>() -> usize {
    C::GROUPS * GROUP
}

/// Returns the bytes of a block of `elements`.
#[inline(always)]
pub(crate) fn block_len<C: Code>(code: C, elements: usize) -> usize {
    let (groups, rest) = (elements / GROUP, elements % GROUP);
    head::<C>() + groups * group_len(code, GROUP) + group_len(code, rest)
}

/// Returns the bytes of the codes of a group of `elements`.
#[inline(always)]
pub(super) fn group_len<C: Code>(code: C, elements: usize) -> usize {
    C::LAYOUT.len(elements, code.bits())
}

/// Returns the bytes of the scale.
fn head<C: Code>() -> usize {
    if C::SCALED { SCALE_BYTES } else { 0 }
}

pub(super) fn encode<C: Code>(code: C, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
    encode_from(code, 0, input, key, output)
}

/// Encodes the blocks from number `first` on, which selects the random numbers.
pub(super) fn encode_from<C: Code>(
    code: C,
    first: u64,
    mut input: Input<'_>,
    key: Key,
    output: &mut [u8],
) -> Finite {
    let mut finite = Finite::Yes;
    let mut places = (first..).zip(output.chunks_mut(block_len(code, block::<C>())));
    input.for_chunks(block::<C>(), |_, input| {
        let (block, bytes) = places.next().expect("every block has a place");
        finite = finite.and(encode_block(code, input, key, block, bytes));
    });
    finite
}

fn encode_block<C: Code>(
    code: C,
    mut input: Input<'_>,
    key: Key,
    block: u64,
    bytes: &mut [u8],
) -> Finite {
    if let Input::Feedback { values, residual } = &mut input {
        add(values, residual);
    }
    let scale = code.scale(input.values(), max_magnitude(input.values()));
    let packed = write_head::<C>(scale, bytes);
    let Some(scale) = scale else {
        packed.fill(0);
        return Finite::No;
    };
    let groups = packed.chunks_mut(group_len(code, GROUP)).zip(block * C::GROUPS as u64..);
    for (at, (bytes, group)) in groups.enumerate() {
        let Group(random) = if C::RANDOM { random(key, group) } else { Group([0; GROUP]) };
        let values = &input.values()[at * GROUP..];
        let elements = values.len().min(GROUP);
        let mut codes = [0; GROUP];
        for ((own, x), random) in codes.iter_mut().zip(values).zip(random) {
            *own = code.code(*x, scale, random as u32) & ((1 << code.bits()) - 1);
        }
        C::LAYOUT.pack(&codes, elements, code.bits(), bytes);
        if let Input::Feedback { values, .. } = &mut input {
            let values = values[at * GROUP..].iter_mut().zip(codes);
            values.for_each(|(x, own)| *x -= code.value(own, scale.scale));
        }
    }
    Finite::Yes
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

pub(super) fn decode<C: Code>(code: C, encoded: &[u8], write: Write, values: &mut [f32]) {
    let blocks = encoded.chunks(block_len(code, block::<C>()));
    for (values, bytes) in values.chunks_mut(block::<C>()).zip(blocks) {
        let (scale, packed) = read_head::<C>(bytes);
        let groups = packed.chunks(group_len(code, GROUP));
        for (values, bytes) in values.chunks_mut(GROUP).zip(groups) {
            let codes = C::LAYOUT.unpack(bytes, values.len(), code.bits());
            let values = values.iter_mut().zip(codes);
            match write {
                Write::Set => values.for_each(|(x, own)| *x = code.value(own, scale)),
                Write::Add => values.for_each(|(x, own)| *x += code.value(own, scale)),
            }
        }
    }
}
