//! Blocks of small integers under one scale.
//!
//! A block of `BLOCK` elements is its scale, an f32, then its codes. A code times the scale is the
//! value. The scale keeps 17 of 24 binary digits and codes have at most 7, so the product is exact,
//! whichever way it is computed. The residual of rounding to nearest is exact too: a value whose code
//! is not 0 is at least half a scale, so its last digit is worth 2^-24 of the scale's power of two
//! at least, and the difference, no more than half a scale, needs no more than 24 such digits.

use std::fmt::Debug;

use thinwire_wire::random::Key;

use super::bits::INFINITY;

/// Range of the codes and their packing.
pub(crate) trait Levels: Copy + Debug + Send + Sync + 'static {
    /// Name of the codec.
    const NAME: &'static str;
    /// Elements under one scale, a multiple of [`GROUP`].
    const BLOCK: usize;
    /// Largest code.
    const MAX: i32;
    /// Bytes of a whole block.
    const BLOCK_BYTES: usize;

    /// Returns the bytes of `elements` codes of one block.
    fn codes_len(elements: usize) -> usize;

    /// Packs the codes of a block, or of the beginning of one.
    fn pack(codes: &[i32], bytes: &mut [u8]);

    /// Reads the code of an element of a block.
    fn code(bytes: &[u8], element: usize) -> i32;

    /// Returns the exact length in bytes of the encoding of `elements` values.
    fn encoded_len(elements: usize) -> usize {
        let (blocks, rest) = (elements / Self::BLOCK, elements % Self::BLOCK);
        let rest = if rest == 0 { 0 } else { SCALE_BYTES + Self::codes_len(rest) };
        blocks * Self::BLOCK_BYTES + rest
    }
}

/// Bytes of a scale.
pub(crate) const SCALE_BYTES: usize = 4;

/// Elements whose random numbers are generated together.
pub(crate) const GROUP: usize = 128;

/// Elements of a vector.
pub(crate) const LANES: usize = 16;

/// Codes of one byte, -127..=127.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8;
/// Codes of half a byte, -7..=7. Of every 32 elements, byte `j` holds element `j` in its lower and
/// element `16 + j` in its upper half, in two's complement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int4;
/// Codes of three bits, -3..=3, in two's complement. A block of 128 has three planes of 16 bytes. The
/// lower six bits of byte `j` of plane `p` hold elements `32 p + j` and `32 p + 16 + j`; the upper two
/// bits of the three planes are the six bits of elements `96 + j` and `112 + j`, lowest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int3;

impl Levels for Int8 {
    const NAME: &'static str = "int8";
    const BLOCK: usize = 256;
    const MAX: i32 = 127;
    const BLOCK_BYTES: usize = SCALE_BYTES + 256;

    fn codes_len(elements: usize) -> usize {
        elements
    }

    fn pack(codes: &[i32], bytes: &mut [u8]) {
        bytes.iter_mut().zip(codes).for_each(|(byte, code)| *byte = *code as u8);
    }

    fn code(bytes: &[u8], element: usize) -> i32 {
        i32::from(bytes[element] as i8)
    }
}

impl Levels for Int4 {
    const NAME: &'static str = "int4";
    const BLOCK: usize = 128;
    const MAX: i32 = 7;
    const BLOCK_BYTES: usize = SCALE_BYTES + 64;

    fn codes_len(elements: usize) -> usize {
        elements / 32 * 16 + (elements % 32).min(16)
    }

    fn pack(codes: &[i32], bytes: &mut [u8]) {
        for (codes, bytes) in codes.chunks(32).zip(bytes.chunks_mut(16)) {
            for (lane, byte) in bytes.iter_mut().enumerate() {
                let upper = codes.get(16 + lane).copied().unwrap_or(0);
                *byte = (codes[lane] & 15 | upper << 4) as u8;
            }
        }
    }

    fn code(bytes: &[u8], element: usize) -> i32 {
        let byte = i32::from(bytes[element / 32 * 16 + element % 16]);
        let shift = if element % 32 < 16 { 28 } else { 24 };
        byte << shift >> 28
    }
}

impl Levels for Int3 {
    const NAME: &'static str = "int3";
    const BLOCK: usize = 128;
    const MAX: i32 = 3;
    const BLOCK_BYTES: usize = SCALE_BYTES + 48;

    fn codes_len(elements: usize) -> usize {
        Int4::codes_len(elements.min(96))
    }

    fn pack(codes: &[i32], bytes: &mut [u8]) {
        bytes.fill(0);
        for (element, code) in codes.iter().enumerate() {
            let (pair, lane) = (element / 32, element % 16);
            let bits = (code & 7) << if element % 32 < 16 { 0 } else { 3 };
            match pair {
                3 => (0..3).for_each(|plane| {
                    bytes[plane * 16 + lane] |= ((bits >> (2 * plane) & 3) << 6) as u8;
                }),
                _ => bytes[pair * 16 + lane] |= bits as u8,
            }
        }
    }

    fn code(bytes: &[u8], element: usize) -> i32 {
        let (pair, lane) = (element / 32, element % 16);
        let bits = match pair {
            3 => (0..3).map(|plane| i32::from(bytes[plane * 16 + lane] >> 6) << (2 * plane)).sum(),
            _ => i32::from(bytes[pair * 16 + lane]),
        };
        let shift = if element % 32 < 16 { 29 } else { 26 };
        bits << shift >> 29
    }
}

/// Scale of a block and the inverse of the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub scale: f32,
    pub inverse: f32,
}

/// Smallest largest magnitude of a block: below, the inverse of the scale could overflow, and the block
/// is sent as zeros.
pub(crate) const SMALLEST: f32 = 7.888_609e-31; // 2^-100

/// Bits of a scale that are always 0.
pub(super) const UNUSED: u32 = 0x7f;

impl Scale {
    /// Returns the scale of a block whose largest magnitude has the bits `max_bits`; none if that is
    /// not finite.
    ///
    /// The scale is rounded down, such that the largest value still rounds to the largest code. For
    /// stochastic rounding the scale is rounded up, since clipping the largest value would be a bias.
    #[inline(always)]
    pub(crate) fn of(max_bits: u32, max_code: i32, stochastic: bool) -> Option<Scale> {
        if max_bits >= INFINITY {
            return None;
        }
        let max = f32::from_bits(max_bits);
        if max < SMALLEST {
            return Some(Scale { scale: 0.0, inverse: 0.0 });
        }
        let bits = (max / max_code as f32).to_bits();
        let mut scale = f32::from_bits(bits & !UNUSED);
        if stochastic {
            let above = f32::from_bits((bits + UNUSED) & !UNUSED);
            // Rounded up, the scale of the largest floats would decode to infinity.
            scale = if (above * max_code as f32).is_finite() { above } else { scale };
        }
        Some(Scale { scale, inverse: 1.0 / scale })
    }
}

/// Binary digits behind the point that are compared with random ones.
pub(crate) const RANDOM_BITS: u32 = 15;

/// One number for each element of a group, aligned for vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Group(pub [i32; GROUP]);

/// Returns 15 random bits for each of the 128 elements of a group.
///
/// Element `16 v + lane` takes half `v % 2` of word `v / 2` of Philox block `16 group + lane`, so
/// that vectors of 8 and of 16 lanes find their numbers in place.
pub(crate) fn random_group(key: Key, group: u64) -> [u16; GROUP] {
    let mut random = [0; GROUP];
    for lane in 0..LANES {
        let words = key.words(group * LANES as u64 + lane as u64);
        for (vector, word) in words.iter().flat_map(|word| [*word, word >> 16]).enumerate() {
            random[vector * LANES + lane] = word as u16 >> 1;
        }
    }
    random
}

/// Returns the numbers of [`random_group`] as integers of 32 bits.
pub(super) fn random_codes(key: Key, group: u64) -> Group {
    Group(random_group(key, group).map(i32::from))
}
