//! Random numbers of a group in vectors.

use thinwire_wire::random::Key;

use super::lanes::Lanes;
use crate::kernel::random::{GROUP, Group, LANES};

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
