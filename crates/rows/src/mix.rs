//! Hash of row numbers.
//!
//! Row numbers are the program's own, so no attacker chooses them and multiplication is enough. The upper
//! bits of the product are used (Fibonacci hashing: Knuth, "The Art of Computer Programming", section 6.4).

use std::hash::{BuildHasherDefault, Hasher};

/// 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hash map with rows as keys.
pub type RowMap<V> = std::collections::HashMap<u64, V, BuildHasherDefault<Mix>>;

/// Returns a number whose upper bits depend on all bits of `row`.
pub fn mix(row: u64) -> u64 {
    (row ^ (row >> 32)).wrapping_mul(MULTIPLIER)
}

/// Hasher of one row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        // The map uses the lower bits.
        self.0.rotate_left(32)
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are rows")
    }

    fn write_u64(&mut self, row: u64) {
        self.0 = mix(row);
    }
}

/// Returns the row whose [`mix`] is `product`.
#[cfg(test)]
pub fn unmix(product: u64) -> u64 {
    // Each Newton iteration doubles the number of correct bits; an odd number is its own inverse in three
    // bits.
    let inverse = (0..5).fold(MULTIPLIER, |inverse: u64, _| {
        inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)))
    });
    let folded = product.wrapping_mul(inverse);
    folded ^ folded >> 32
}
