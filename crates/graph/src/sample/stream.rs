//! Random words of one batch, read one after the other.

use thinwire_wire::random::Key;

/// Blocks of four words that are computed at a time.
const BLOCKS: usize = 16;

/// Reader of the random words of a key.
#[derive(Clone, Debug)]
pub struct Stream {
    key: Key,
    block: u64,
    words: [u32; 4 * BLOCKS],
    at: usize,
}

impl Stream {
    /// Creates a reader that begins with the first word.
    pub fn new(key: Key) -> Stream {
        Stream { key, block: 0, words: [0; 4 * BLOCKS], at: 4 * BLOCKS }
    }

    /// Returns the next word.
    #[inline]
    pub fn word(&mut self) -> u32 {
        if self.at == self.words.len() {
            self.refill();
        }
        self.at += 1;
        self.words[self.at - 1]
    }

    /// Returns a number in `0..bound`, each equally likely, for a bound of at least 1 (Lemire, "Fast Random
    /// Integer Generation in an Interval", 2019, algorithm 5).
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        let mut product = u64::from(self.word()) * u64::from(bound);
        if (product as u32) < bound {
            let least = bound.wrapping_neg() % bound;
            while (product as u32) < least {
                product = u64::from(self.word()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// Returns a number strictly between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (f64::from(self.word()) + 0.5) / 4_294_967_296.0
    }

    fn refill(&mut self) {
        for (block, words) in (self.block..).zip(self.words.as_chunks_mut().0) {
            *words = self.key.words(block);
        }
        self.block += BLOCKS as u64;
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_key() {
        let key = Key { seed: 3, step: 1, tensor: 4 };
        let mut stream = Stream::new(key);
        for element in 0..300 {
            assert_eq!(stream.word(), key.word(element));
        }
    }

    #[test]
    fn numbers_below_a_large_bound_are_even() {
        // A plain product would give every third number two words and the others one.
        let bound = 3 << 30;
        let mut stream = Stream::new(Key { seed: 1, step: 0, tensor: 0 });
        let mut counts = [0_u32; 3];
        (0..30_000).for_each(|_| counts[stream.below(bound) as usize % 3] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 400), "{counts:?}");
    }
}
