//! Codes of a block between vectors and the planes of `kernel::planes`.
//!
//! Planes are made in pairs: two bits of every code are gathered in 16 bits per lane, and zipping moves
//! them between the order of codes and that of planes.

use super::lanes::Lanes;
use crate::kernel::levels::LANES;
use crate::kernel::planes::{self, BLOCK};

/// Number of vectors of a block.
pub(super) const VECTORS: usize = BLOCK / LANES;

/// Packs the lowest `BITS` bits of codes, at most 8, into all of `bytes`.
#[inline(always)]
pub(super) unsafe fn pack<L: Lanes, const BITS: usize>(codes: &[L::I; VECTORS], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), planes::len(BLOCK, BITS));
    let to = bytes.as_mut_ptr();
    if BITS == 8 {
        for (vector, codes) in codes.iter().enumerate() {
            L::store_bytes(to.add(vector * LANES), *codes);
        }
        return;
    }
    if BITS == 1 {
        let mut together = L::splat_int(0);
        for codes in codes.iter().rev() {
            let ones = L::and(*codes, L::splat_int(1));
            together = L::or(L::shift_left::<1>(together), ones);
        }
        return L::store_bytes(to, together);
    }
    for pair in 0..BITS.div_ceil(2) {
        let mut together = L::splat_int(0);
        for codes in codes.iter().rev() {
            let two = L::and(down::<L>(*codes, pair), L::splat_int(3));
            together = L::or(L::shift_left::<2>(together), two);
        }
        let planes = unzip::<L>(together);
        L::store_bytes(to.add(2 * pair * LANES), planes);
        if 2 * pair + 1 < BITS {
            L::store_bytes(to.add((2 * pair + 1) * LANES), L::shift_right::<8>(planes));
        }
    }
}

/// Reads codes of `BITS` bits, at most 8, from all of `bytes`; higher bits are undefined.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes, const BITS: usize>(bytes: &[u8]) -> [L::I; VECTORS] {
    assert_eq!(bytes.len(), planes::len(BLOCK, BITS));
    let from = bytes.as_ptr();
    let mut codes = [L::splat_int(0); VECTORS];
    if BITS == 8 {
        for (vector, codes) in codes.iter_mut().enumerate() {
            *codes = L::load_i8(from.add(vector * LANES));
        }
        return codes;
    }
    if BITS == 1 {
        let mut together = L::load_i8(from);
        for codes in &mut codes {
            *codes = together;
            together = L::shift_right::<1>(together);
        }
        return codes;
    }
    let byte = L::splat_int(0xff);
    for pair in 0..BITS.div_ceil(2) {
        let mut planes = L::and(L::load_i8(from.add(2 * pair * LANES)), byte);
        if 2 * pair + 1 < BITS {
            let upper = L::and(L::load_i8(from.add((2 * pair + 1) * LANES)), byte);
            planes = L::or(planes, L::shift_left::<8>(upper));
        }
        let mut together = zip::<L>(planes);
        for codes in &mut codes {
            *codes = L::or(*codes, up::<L>(L::and(together, L::splat_int(3)), pair));
            together = L::shift_right::<2>(together);
        }
    }
    codes
}

/// Shifts to the right by `pairs` pairs of bits.
#[inline(always)]
unsafe fn down<L: Lanes>(x: L::I, pairs: usize) -> L::I {
    match pairs {
        0 => x,
        1 => L::shift_right::<2>(x),
        2 => L::shift_right::<4>(x),
        _ => L::shift_right::<6>(x),
    }
}

/// Shifts to the left by `pairs` pairs of bits.
#[inline(always)]
unsafe fn up<L: Lanes>(x: L::I, pairs: usize) -> L::I {
    match pairs {
        0 => x,
        1 => L::shift_left::<2>(x),
        2 => L::shift_left::<4>(x),
        _ => L::shift_left::<6>(x),
    }
}

/// Moves the even ones of 16 bits to the lower byte, the odd ones to the upper byte.
#[inline(always)]
unsafe fn unzip<L: Lanes>(x: L::I) -> L::I {
    swap::<L, 4>(swap::<L, 2>(swap::<L, 1>(x, 0x2222), 0x0c0c), 0x00f0)
}

/// Undoes [`unzip`].
#[inline(always)]
unsafe fn zip<L: Lanes>(x: L::I) -> L::I {
    swap::<L, 1>(swap::<L, 2>(swap::<L, 4>(x, 0x00f0), 0x0c0c), 0x2222)
}

/// Exchanges the bits of the mask with the bits `N` places above.
#[inline(always)]
unsafe fn swap<L: Lanes, const N: u32>(x: L::I, mask: u32) -> L::I {
    let different = L::and(L::xor(x, L::shift_right::<N>(x)), L::splat_int(mask));
    L::xor(x, L::xor(different, L::shift_left::<N>(different)))
}
