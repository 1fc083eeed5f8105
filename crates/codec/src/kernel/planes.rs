//! Packing of codes of any width into a fixed number of bytes.
//!
//! The codes of a block of 128 elements take, for every 8 bits of their width, one byte each, lowest
//! first; then, for every bit that is left, a plane of 16 bytes, in which bit `i` of byte `j` belongs
//! to element `16 i + j`. Every step treats 16 neighbours alike, so that the compiler vectorises it. A
//! block of fewer elements leaves out the bytes behind the last element, in planes too.

/// Elements of a block.
pub(crate) const BLOCK: usize = 128;

const LANES: usize = 16;

/// Returns the bytes of `elements` codes of `bits` bits each, in one block.
pub(crate) fn len(elements: usize, bits: usize) -> usize {
    elements * (bits / 8) + elements.min(LANES) * (bits % 8)
}

/// Writes the first `elements` codes into all of `bytes`.
#[inline(always)]
pub(crate) fn pack(codes: &[u32; BLOCK], elements: usize, bits: usize, bytes: &mut [u8]) {
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
fn gather(codes: &[u32; BLOCK], bit: usize) -> [u8; LANES] {
    let mut together = [0; LANES];
    for (element, codes) in codes.chunks_exact(LANES).enumerate() {
        let ones = together.iter_mut().zip(codes);
        ones.for_each(|(byte, code)| *byte |= ((code >> bit & 1) as u8) << element);
    }
    together
}

/// Reads `elements` codes from all of `bytes`; further codes of the block are undefined.
#[inline(always)]
pub(crate) fn unpack(bytes: &[u8], elements: usize, bits: usize) -> [u32; BLOCK] {
    let mut codes = [0; BLOCK];
    let (whole, planes) = bytes.split_at(elements * (bits / 8));
    for (byte, places) in whole.chunks_exact(elements.max(1)).enumerate() {
        let shift = 8 * byte;
        codes.iter_mut().zip(places).for_each(|(code, x)| *code |= u32::from(*x) << shift);
    }
    for (plane, places) in planes.chunks(elements.clamp(1, LANES)).enumerate() {
        let mut together = [0; LANES];
        together.iter_mut().zip(places).for_each(|(byte, place)| *byte = *place);
        scatter(&together, bits / 8 * 8 + plane, &mut codes);
    }
    codes
}

#[inline(always)]
fn scatter(together: &[u8; LANES], bit: usize, codes: &mut [u32; BLOCK]) {
    for (element, codes) in codes.chunks_exact_mut(LANES).enumerate() {
        let ones = codes.iter_mut().zip(together);
        ones.for_each(|(code, byte)| *code |= u32::from(byte >> element & 1) << bit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn codes_read_back(raw in prop::collection::vec(any::<u32>(), BLOCK), elements in 0..=BLOCK, bits in 1..=16usize) {
            let mut codes = [0; BLOCK];
            codes.iter_mut().zip(&raw).take(elements).for_each(|(code, x)| *code = x & ((1 << bits) - 1));
            let mut bytes = vec![0xaa; len(elements, bits)];
            pack(&codes, elements, bits, &mut bytes);
            prop_assert_eq!(&unpack(&bytes, elements, bits)[..elements], &codes[..elements]);
        }
    }

    #[test]
    fn a_whole_block_takes_no_bit_more_than_its_codes() {
        (1..=16).for_each(|bits| assert_eq!(len(BLOCK, bits), BLOCK * bits / 8));
    }
}
