//! Random numbers of one seed: SplitMix64.
//!
//! Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA'14, figure 17).

use std::ops::Range;
use std::time::Duration;

/// Sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a sequence that depends only on `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..end`; 0 if the range is empty.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number in a range.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// Returns a time in a range.
    pub fn time(&mut self, range: &Range<Duration>) -> Duration {
        Duration::from_nanos(self.range(range.start.as_nanos() as u64..range.end.as_nanos() as u64))
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // No draw where there is no chance, so that calm networks are fast.
        probability > 0.0 && (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64) < probability
    }
}
