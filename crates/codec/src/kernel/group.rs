//! Groups of elements: their random numbers, and the packing of their codes into a fixed number of bytes.
//!
//! Byte `j` of 16 always belongs to elements whose number is `j` modulo 16, so that every step treats 16
//! neighbours alike and the compiler vectorises it. A group of fewer than 128 elements leaves out the
//! bytes behind the last element.

use thinwire_wire::random::Key;

/// Elements whose random numbers are generated together, and whose codes are packed together.
pub(crate) const GROUP: usize = 128;

/// Elements of a vector.
pub(crate) const LANES: usize = 16;

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
pub(super) fn random(key: Key, group: u64) -> Group {
    let mut random = Group([0; GROUP]);
    for lane in 0..LANES {
        let words = key.words(group * LANES as u64 + lane as u64);
        for (vector, word) in words.iter().flat_map(|word| [*word, word >> 16]).enumerate() {
            random.0[vector * LANES + lane] = i32::from(word as u16 >> 1);
        }
    }
    random
}

/// Order of the bits of the codes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// For every 8 bits of the width one byte per element, lowest first; then, for every bit that is
    /// left, a plane of 16 bytes, in which bit `i` of byte `j` belongs to element `16 i + j`.
    Planes,
    /// Codes of 2 or 4 bits side by side in a byte: of every 16 bytes, byte `j` holds the codes of
    /// elements `j`, `16 + j` and so on, lowest first.
    Lanes,
    /// Codes of three bits in three times 16 bytes. The lower six bits of byte `j` of plane `p` hold
    /// elements `32 p + j` and `32 p + 16 + j`; the upper two bits of the three planes are the six bits
    /// of elements `96 + j` and `112 + j`, lowest first.
    Three,
}

/// Returns the number of elements of a group whose codes share 16 bytes in the layout of lanes.
const fn share(bits: usize) -> usize {
    LANES * (8 / bits)
}

impl Layout {
    /// Returns the bytes of `elements` codes of `bits` bits each, in one group.
    pub(crate) fn len(self, elements: usize, bits: usize) -> usize {
        let lanes = |elements: usize, share: usize| {
            elements / share * LANES + (elements % share).min(LANES)
        };
        match self {
            Layout::Planes => elements * (bits / 8) + elements.min(LANES) * (bits % 8),
            Layout::Lanes => lanes(elements, share(bits)),
            Layout::Three => lanes(elements.min(96), share(3)),
        }
    }

    /// Writes the first `elements` codes into all of `bytes`; further codes are 0.
    #[inline(always)]
    pub(crate) fn pack(self, codes: &[u32; GROUP], elements: usize, bits: usize, bytes: &mut [u8]) {
        match self {
            Layout::Planes => pack_planes(codes, elements, bits, bytes),
            Layout::Lanes => pack_lanes(codes, bits, bytes),
            Layout::Three => {
                pack_lanes(&codes[..96], 3, bytes);
                for (plane, bytes) in bytes.chunks_mut(LANES).enumerate() {
                    for (lane, byte) in bytes.iter_mut().enumerate() {
                        let six = codes[96 + lane] | codes[112 + lane] << 3;
                        *byte |= (six >> (2 * plane) << 6) as u8;
                    }
                }
            }
        }
    }

    /// Reads `elements` codes from all of `bytes`; further codes of the group are undefined.
    #[inline(always)]
    pub(crate) fn unpack(self, bytes: &[u8], elements: usize, bits: usize) -> [u32; GROUP] {
        let mut codes = [0; GROUP];
        match self {
            Layout::Planes => unpack_planes(bytes, elements, bits, &mut codes),
            Layout::Lanes => unpack_lanes(bytes, bits, &mut codes),
            Layout::Three => {
                unpack_lanes(bytes, 3, &mut codes[..96]);
                for (plane, bytes) in bytes.chunks(LANES).enumerate() {
                    for (lane, byte) in bytes.iter().enumerate() {
                        let two = u32::from(byte >> 6) << (2 * plane);
                        codes[96 + lane] |= two & 7;
                        codes[112 + lane] |= two >> 3;
                    }
                }
            }
        }
        codes
    }
}

#[inline(always)]
fn pack_planes(codes: &[u32; GROUP], elements: usize, bits: usize, bytes: &mut [u8]) {
    let (whole, planes) = bytes.split_at_mut(elements * (bits / 8));
    for (byte, places) in whole.chunks_exact_mut(elements.max(1)).enumerate() {
        let shift = 8 * byte;
        places.iter_mut().zip(codes).for_each(|(place, code)| *place = (code >> shift) as u8);
    }
    for (plane, places) in planes.chunks_mut(elements.clamp(1, LANES)).enumerate() {
        let together = gather(codes, bits / 8 * 8 + plane);
        places.iter_mut().zip(together).for_each(|(place, byte)| *place = byte);
    }
}

#[inline(always)]
fn gather(codes: &[u32; GROUP], bit: usize) -> [u8; LANES] {
    let mut together = [0; LANES];
    for (element, codes) in codes.chunks_exact(LANES).enumerate() {
        let ones = together.iter_mut().zip(codes);
        ones.for_each(|(byte, code)| *byte |= ((code >> bit & 1) as u8) << element);
    }
    together
}

#[inline(always)]
fn unpack_planes(bytes: &[u8], elements: usize, bits: usize, codes: &mut [u32; GROUP]) {
    let (whole, planes) = bytes.split_at(elements * (bits / 8));
    for (byte, places) in whole.chunks_exact(elements.max(1)).enumerate() {
        let shift = 8 * byte;
        codes.iter_mut().zip(places).for_each(|(code, x)| *code |= u32::from(*x) << shift);
    }
    for (plane, places) in planes.chunks(elements.clamp(1, LANES)).enumerate() {
        let mut together = [0; LANES];
        together.iter_mut().zip(places).for_each(|(byte, place)| *byte = *place);
        scatter(&together, bits / 8 * 8 + plane, codes);
    }
}

#[inline(always)]
fn scatter(together: &[u8; LANES], bit: usize, codes: &mut [u32; GROUP]) {
    for (element, codes) in codes.chunks_exact_mut(LANES).enumerate() {
        let ones = codes.iter_mut().zip(together);
        ones.for_each(|(code, byte)| *code |= u32::from(byte >> element & 1) << bit);
    }
}

#[inline(always)]
fn pack_lanes(codes: &[u32], bits: usize, bytes: &mut [u8]) {
    for (codes, bytes) in codes.chunks(share(bits)).zip(bytes.chunks_mut(LANES)) {
        bytes.fill(0);
        for (vector, codes) in codes.chunks(LANES).enumerate() {
            let places = bytes.iter_mut().zip(codes);
            places.for_each(|(byte, code)| *byte |= (code << (vector * bits)) as u8);
        }
    }
}

#[inline(always)]
fn unpack_lanes(bytes: &[u8], bits: usize, codes: &mut [u32]) {
    for (codes, bytes) in codes.chunks_mut(share(bits)).zip(bytes.chunks(LANES)) {
        for (vector, codes) in codes.chunks_mut(LANES).enumerate() {
            let places = codes.iter_mut().zip(bytes);
            places.for_each(|(code, byte)| {
                *code = u32::from(byte >> (vector * bits)) & ((1 << bits) - 1);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn codes_read_back(raw in prop::collection::vec(any::<u32>(), GROUP), elements in 0..=GROUP) {
            let planes = (1..=16).map(|bits| (Layout::Planes, bits));
            let others = [(Layout::Lanes, 2), (Layout::Lanes, 4), (Layout::Three, 3)];
            for (layout, bits) in planes.chain(others) {
                let mut codes = [0; GROUP];
                let all = codes.iter_mut().zip(&raw).take(elements);
                all.for_each(|(code, x)| *code = x & ((1 << bits) - 1));
                let mut bytes = vec![0xaa; layout.len(elements, bits)];
                layout.pack(&codes, elements, bits, &mut bytes);
                let read = layout.unpack(&bytes, elements, bits);
                prop_assert_eq!(&read[..elements], &codes[..elements], "{:?} {}", layout, bits);
            }
        }
    }

    #[test]
    fn a_whole_group_takes_no_bit_more_than_its_codes() {
        (1..=16).for_each(|bits| assert_eq!(Layout::Planes.len(GROUP, bits), GROUP * bits / 8));
        assert_eq!([2, 4].map(|bits| Layout::Lanes.len(GROUP, bits)), [32, 64]);
        assert_eq!(Layout::Three.len(GROUP, 3), 48);
    }
}
