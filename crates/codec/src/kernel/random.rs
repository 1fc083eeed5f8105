//! Random numbers of rounding, generated for a group of elements at once.

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
