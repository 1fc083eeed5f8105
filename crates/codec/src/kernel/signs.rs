//! Blocks of signs, one or two bits per element, under one unit.
//!
//! A block of 128 elements is its unit, an f32, then its codes. The lowest bit of a code says that
//! the value is negative, the next one, if there is one, that it is three units instead of one. The
//! unit is a fixed multiple of the mean magnitude of the block and keeps 17 of 24 binary digits, so
//! three units are exact, and so is the mean of 128 equal magnitudes. The residual of a value is
//! rounded once, since a value may be far smaller than the unit.
//!
//! Byte `j` of 16 holds the codes of elements `j`, `16 + j`, `32 + j`, … lowest first, so that one
//! shift brings those of 16 neighbours into place.

use std::fmt::Debug;

use super::bits::{SIGN, read_f32};
use super::levels::{LANES, SCALE_BYTES, SMALLEST, UNUSED};
use super::scalar::{add, magnitudes};
use crate::{Finite, Input, Write};

/// Width of a code and size of a unit.
pub(crate) trait Signs: Copy + Debug + Send + Sync + 'static {
    /// Name of the codec.
    const NAME: &'static str;
    /// Bits of a code: 1 or 2.
    const BITS: usize;
    /// Unit of a block whose mean magnitude is 1.
    const UNIT: f32;
    /// Elements whose codes share 16 bytes.
    const PLANE: usize = LANES * 8 / Self::BITS;
    /// Bytes of a whole block.
    const BLOCK_BYTES: usize = SCALE_BYTES + BLOCK / 8 * Self::BITS;

    /// Returns the exact length in bytes of the encoding of `elements` values.
    fn encoded_len(elements: usize) -> usize {
        let (blocks, rest) = (elements / BLOCK, elements % BLOCK);
        let codes = rest / Self::PLANE * LANES + (rest % Self::PLANE).min(LANES);
        let head = if rest == 0 { 0 } else { SCALE_BYTES };
        blocks * Self::BLOCK_BYTES + head + codes
    }
}

/// Elements under one unit.
pub(crate) const BLOCK: usize = 128;

/// Signs under the mean magnitude.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneBit;
/// Signs under one or three times 5/8 of the mean magnitude, which is nearly the best unit for normal
/// values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int2;

impl Signs for OneBit {
    const NAME: &'static str = "onebit";
    const BITS: usize = 1;
    const UNIT: f32 = 1.0;
}

impl Signs for Int2 {
    const NAME: &'static str = "int2";
    const BITS: usize = 2;
    const UNIT: f32 = 0.625;
}

/// Factor of every magnitude before the sum over [`BLOCK`] elements, so that no sum overflows.
pub(super) const SHARE: f32 = 1.0 / BLOCK as f32;

/// Magnitudes that codes are decoded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    /// One unit.
    pub one: f32,
    /// Three units, where codes have two bits.
    pub three: f32,
    /// Bits of the largest magnitude that is nearer to one unit than to three.
    pub most: u32,
}

impl Unit {
    /// Returns the unit of a block of `length` elements with the sum of magnitudes `sum` over [`BLOCK`];
    /// none if the decoded values would not be finite.
    #[inline(always)]
    pub(super) fn of<S: Signs>(sum: f32, length: usize) -> Option<Unit> {
        let mean = sum / (length as f32 * SHARE);
        if mean < SMALLEST {
            return Some(Unit::new(0.0));
        }
        let unit = Unit::new(f32::from_bits((mean * S::UNIT).to_bits() & !UNUSED));
        let largest = if S::BITS == 1 { unit.one } else { unit.three };
        (largest < f32::INFINITY).then_some(unit)
    }

    /// Returns the magnitudes of a block that begins with `one`.
    #[inline(always)]
    pub(super) fn new(one: f32) -> Unit {
        Unit { one, three: one * 3.0, most: (one * 2.0).to_bits() & !SIGN }
    }

    fn code<S: Signs>(&self, x: f32) -> u8 {
        let large = S::BITS == 2 && x.to_bits() & !SIGN > self.most;
        (x.to_bits() >> 31) as u8 | u8::from(large) << 1
    }

    fn value(&self, code: u8) -> f32 {
        let magnitude = if code & 2 == 0 { self.one } else { self.three };
        f32::from_bits(magnitude.to_bits() ^ u32::from(code & 1) << 31)
    }
}

/// Returns the byte and the shift of the code of an element of a block.
fn place<S: Signs>(element: usize) -> (usize, usize) {
    let (plane, within) = (element / S::PLANE, element % S::PLANE);
    (plane * LANES + within % LANES, within / LANES * S::BITS)
}

fn code<S: Signs>(bytes: &[u8], element: usize) -> u8 {
    let (at, shift) = place::<S>(element);
    bytes[at] >> shift & ((1 << S::BITS) - 1)
}

pub(super) fn encode<S: Signs>(input: Input<'_>, output: &mut [u8]) -> Finite {
    let mut finite = Finite::Yes;
    let places = output.chunks_mut(S::BLOCK_BYTES);
    match input {
        Input::Plain(values) => {
            for (values, bytes) in values.chunks(BLOCK).zip(places) {
                finite = finite.and(Finite::when(encode_block::<S>(values, bytes).is_some()));
            }
        }
        Input::Feedback { values, residual } => {
            let values = values.chunks_mut(BLOCK).zip(residual.chunks(BLOCK));
            for ((values, residual), bytes) in values.zip(places) {
                add(values, residual);
                match encode_block::<S>(values, bytes) {
                    Some(unit) => subtract_block::<S>(unit, &bytes[SCALE_BYTES..], values),
                    None => finite = Finite::No,
                }
            }
        }
    }
    finite
}

fn encode_block<S: Signs>(values: &[f32], bytes: &mut [u8]) -> Option<Unit> {
    let unit = Unit::of::<S>(magnitudes(values, SHARE), values.len());
    let (head, codes) = bytes.split_at_mut(SCALE_BYTES);
    head.copy_from_slice(&unit.map_or(f32::NAN, |unit| unit.one).to_le_bytes());
    codes.fill(0);
    for (element, x) in values.iter().enumerate().take_while(|_| unit.is_some()) {
        let (at, shift) = place::<S>(element);
        codes[at] |= unit.map_or(0, |unit| unit.code::<S>(*x)) << shift;
    }
    unit
}

fn subtract_block<S: Signs>(unit: Unit, codes: &[u8], values: &mut [f32]) {
    for (element, x) in values.iter_mut().enumerate() {
        *x -= unit.value(code::<S>(codes, element));
    }
}

pub(super) fn decode<S: Signs>(encoded: &[u8], write: Write, values: &mut [f32]) {
    for (values, bytes) in values.chunks_mut(BLOCK).zip(encoded.chunks(S::BLOCK_BYTES)) {
        let (head, codes) = bytes.split_at(SCALE_BYTES);
        let unit = Unit::new(read_f32(head));
        let decoded = |element| unit.value(code::<S>(codes, element));
        let values = values.iter_mut().enumerate();
        match write {
            Write::Set => values.for_each(|(element, x)| *x = decoded(element)),
            Write::Add => values.for_each(|(element, x)| *x += decoded(element)),
        }
    }
}
