//! Counter-based random numbers: Philox4x32-10.
//!
//! Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11, section 4.3): a block of
//! random words is a pure function of a counter and a key, so the numbers of an element do not depend
//! on the rank, the order or the number of threads that compute it. There is no state.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Stream of random words of one tensor in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Seed of the job, mixed with the rank where ranks must be independent.
    pub seed: u64,
    /// Training step.
    pub step: u64,
    /// Number of the tensor or bucket.
    pub tensor: u32,
}

impl Key {
    /// Returns an independent stream for a rank, so that rounding errors of ranks do not add up.
    pub fn for_rank(self, rank: u32) -> Key {
        let [a, b, _, _] =
            philox([rank, 0x7261_6e6b, 0, 0], [self.seed as u32, (self.seed >> 32) as u32]);
        Key { seed: u64::from(a) | u64::from(b) << 32, ..self }
    }

    /// Returns the four random words of elements `4 * block .. 4 * block + 4`.
    pub fn words(&self, block: u64) -> [u32; 4] {
        let (counter, key) = self.philox_input(block);
        philox(counter, key)
    }

    /// Returns counter and key of [`Key::words`], for vectorised kernels: only `counter[0]` and
    /// `counter[1]` (the low and high word of `block`) vary within a tensor.
    pub fn philox_input(&self, block: u64) -> ([u32; 4], [u32; 2]) {
        let step = self.step as u32 ^ ((self.step >> 32) as u32).rotate_left(16);
        let counter = [block as u32, (block >> 32) as u32, self.tensor, step];
        (counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// Returns the random word of one element.
    pub fn word(&self, element: u64) -> u32 {
        self.words(element / 4)[(element % 4) as usize]
    }

    /// Returns a number in `[0, 1)` with 24 random bits for one element.
    pub fn uniform(&self, element: u64) -> f32 {
        unit(self.word(element))
    }

    /// Returns a number in `0..bound` for one element, by multiplication: the bias is below `bound / 2^32`.
    pub fn below(&self, element: u64, bound: u32) -> u32 {
        ((u64::from(self.word(element)) * u64::from(bound)) >> 32) as u32
    }

    /// Returns a standard normal number for one element (Box and Muller's transform of two words).
    pub fn normal(&self, element: u64) -> f32 {
        let words = self.words(element);
        let radius = (-2.0 * (1.0 - unit(words[0])).ln()).sqrt();
        radius * (std::f32::consts::TAU * unit(words[1])).cos()
    }
}

/// Maps the upper 24 bits of a random word to a number in `[0, 1)`.
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Computes one block of Philox4x32 with ten rounds.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let low = u64::from(counter[0]) * u64::from(MULTIPLIERS[0]);
        let high = u64::from(counter[2]) * u64::from(MULTIPLIERS[1]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Returns a permutation of `0..length` that depends on nothing but `key` (Fisher and Yates'
/// shuffle).
pub fn permutation(key: Key, length: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..length).collect();
    for last in (1..length).rev() {
        let other = key.below(u64::from(last), last + 1);
        order.swap(last as usize, other as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { seed: 42, step: 3, tensor: 1 };

    /// Known answers published with the Random123 library.
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn streams_of_ranks_steps_and_tensors_are_uncorrelated() {
        let others = [
            KEY.for_rank(0),
            KEY.for_rank(1),
            Key { step: 4, ..KEY },
            Key { tensor: 2, ..KEY },
            Key { seed: 43, ..KEY },
        ];
        let count = 10_000;
        for other in others {
            let correlation: f64 = (0..count)
                .map(|i| f64::from(KEY.uniform(i) - 0.5) * f64::from(other.uniform(i) - 0.5) * 12.0)
                .sum::<f64>()
                / count as f64;
            assert!(correlation.abs() < 5.0 / (count as f64).sqrt(), "correlation {correlation}");
        }
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let count = 20_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..count {
            let x = f64::from(KEY.normal(i));
            sum += x;
            squares += x * x;
        }
        assert!((sum / count as f64).abs() < 0.04);
        assert!((squares / count as f64 - 1.0).abs() < 0.06);
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = permutation(KEY, 1000);
        assert_ne!(order[..10], (0..10).collect::<Vec<_>>()[..]);
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
