//! Random numbers of a group in vectors, and its codes between vectors and the bytes of a [`Layout`].
//!
//! Planes are made in pairs: two bits of every code are gathered in 16 bits per lane, and zipping moves
//! them between the order of codes and that of planes.

use thinwire_wire::random::Key;

use super::lanes::Lanes;
use crate::kernel::group::{GROUP, Group, LANES, Layout};

/// Number of vectors of a group.
pub(super) const VECTORS: usize = GROUP / LANES;

/// Computes the numbers of the scalar `random`.
#[inline(always)]
pub(super) unsafe fn random_group<L: Lanes>(key: Key, group: u64) -> [L::I; VECTORS] {
    let (counter, [key0, key1]) = key.philox_input(group * LANES as u64);
    let mut c = counter.map(|word| L::splat_int(word));
    c[0] = L::add_int(c[0], L::iota());
    let mut keys = [key0, key1];
    for _ in 0..10 {
        let low = L::mul_wide(c[0], L::splat_int(0xD251_1F53));
        let high = L::mul_wide(c[2], L::splat_int(0xCD9E_8D57));
        c = [
            L::xor(L::xor(high.0, c[1]), L::splat_int(keys[0])),
            high.1,
            L::xor(L::xor(low.0, c[3]), L::splat_int(keys[1])),
            low.1,
        ];
        keys = [keys[0].wrapping_add(0x9E37_79B9), keys[1].wrapping_add(0xBB67_AE85)];
    }
    let lower = L::splat_int(0x7fff);
    let mut random = [lower; VECTORS];
    for word in 0..4 {
        random[2 * word] = L::and(L::shift_right::<1>(c[word]), lower);
        random[2 * word + 1] = L::shift_right::<17>(c[word]);
    }
    random
}

#[inline(always)]
pub(in crate::kernel) unsafe fn random<L: Lanes>(key: Key, group: u64) -> Group {
    let mut words = Group([0; GROUP]);
    for (vector, random) in random_group::<L>(key, group).into_iter().enumerate() {
        L::store(words.0.as_mut_ptr().add(vector * LANES).cast(), L::from_bits(random));
    }
    words
}

/// Packs the lowest `BITS` bits of codes, at most 8, into all of `bytes`.
#[inline(always)]
pub(super) unsafe fn pack<L: Lanes, const BITS: u32>(
    layout: Layout,
    codes: &[L::I; VECTORS],
    bytes: &mut [u8],
) {
    assert_eq!(bytes.len(), layout.len(GROUP, BITS as usize));
    let to = bytes.as_mut_ptr();
    match (layout, BITS) {
        // Planes of these widths are lanes.
        (Layout::Lanes, _) | (_, 1 | 8) => {
            for (place, codes) in codes.chunks_exact(8 / BITS as usize).enumerate() {
                L::store_bytes(to.add(place * LANES), together::<L, BITS>(codes));
            }
        }
        (Layout::Three, _) => {
            let last = together::<L, 3>(&codes[6..]);
            let last =
                [L::shift_left::<6>(last), L::shift_left::<4>(last), L::shift_left::<2>(last)];
            for (plane, last) in last.into_iter().enumerate() {
                let lower = together::<L, 3>(&codes[2 * plane..][..2]);
                let upper = L::and(last, L::splat_int(0xc0));
                L::store_bytes(to.add(plane * LANES), L::or(lower, upper));
            }
        }
        (Layout::Planes, _) => {
            for pair in 0..BITS.div_ceil(2) as usize {
                let mut together = L::splat_int(0);
                for codes in codes.iter().rev() {
                    let two = L::and(down::<L>(*codes, pair), L::splat_int(3));
                    together = L::or(L::shift_left::<2>(together), two);
                }
                let planes = unzip::<L>(together);
                L::store_bytes(to.add(2 * pair * LANES), planes);
                if 2 * pair + 1 < BITS as usize {
                    L::store_bytes(to.add((2 * pair + 1) * LANES), L::shift_right::<8>(planes));
                }
            }
        }
    }
}

/// Puts codes of `BITS` bits side by side, the first one lowest.
#[inline(always)]
unsafe fn together<L: Lanes, const BITS: u32>(codes: &[L::I]) -> L::I {
    // Bits beyond the lowest byte are not stored.
    if BITS == 8 {
        return codes[0];
    }
    let mut together = L::splat_int(0);
    for codes in codes.iter().rev() {
        let own = L::and(*codes, L::splat_int((1 << BITS) - 1));
        together = L::or(L::shift_left::<BITS>(together), own);
    }
    together
}

/// Reads codes of `BITS` bits, at most 8, from all of `bytes`; higher bits are undefined.
#[inline(always)]
pub(super) unsafe fn unpack<L: Lanes, const BITS: u32>(
    layout: Layout,
    bytes: &[u8],
) -> [L::I; VECTORS] {
    assert_eq!(bytes.len(), layout.len(GROUP, BITS as usize));
    let from = bytes.as_ptr();
    let mut codes = [L::splat_int(0); VECTORS];
    match (layout, BITS) {
        (Layout::Lanes, _) | (_, 1 | 8) => {
            for (place, codes) in codes.chunks_exact_mut(8 / BITS as usize).enumerate() {
                apart::<L, BITS>(L::load_i8(from.add(place * LANES)), codes);
            }
        }
        (Layout::Three, _) => {
            let upper = L::splat_int(0xc0);
            let mut last = L::splat_int(0);
            for plane in (0..3).rev() {
                let both = L::load_i8(from.add(plane * LANES));
                apart::<L, 3>(both, &mut codes[2 * plane..][..2]);
                last = L::or(L::shift_left::<2>(last), L::shift_right::<6>(L::and(both, upper)));
            }
            apart::<L, 3>(last, &mut codes[6..]);
        }
        (Layout::Planes, _) => {
            let byte = L::splat_int(0xff);
            for pair in 0..BITS.div_ceil(2) as usize {
                let mut planes = L::and(L::load_i8(from.add(2 * pair * LANES)), byte);
                if 2 * pair + 1 < BITS as usize {
                    let upper = L::and(L::load_i8(from.add((2 * pair + 1) * LANES)), byte);
                    planes = L::or(planes, L::shift_left::<8>(upper));
                }
                let mut together = zip::<L>(planes);
                for codes in &mut codes {
                    *codes = L::or(*codes, up::<L>(L::and(together, L::splat_int(3)), pair));
                    together = L::shift_right::<2>(together);
                }
            }
        }
    }
    codes
}

/// Undoes [`together`]; higher bits of the codes are undefined.
#[inline(always)]
unsafe fn apart<L: Lanes, const BITS: u32>(mut together: L::I, codes: &mut [L::I]) {
    for codes in codes {
        *codes = together;
        together = L::shift_right::<BITS>(together);
    }
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
