//! Positions of some elements of a block, in the fewest bits.
//!
//! `log2 C(n, k)` bits are the least for a code that knows only `n` and `k`, since all sets of `k` of `n`
//! elements are then equally likely: 471.3 bits for 64 of 4,096. An arithmetic code reaches this minimum.
//! For one element after another it encodes whether the element is in the set. The probability is the
//! number of elements of the set that are left, divided by the number of all elements that are left. The
//! product of these probabilities is `1 / C(n, k)` for every set, so the length is known beforehand.
//! Cover, "Enumerative source encoding" (1973), in the form of Rissanen and Langdon, "Arithmetic coding"
//! (1979).
//!
//! Laws: what was written is read back; any bytes of the length are some set of `k` elements.

/// Largest number of elements of a block.
pub(crate) const ELEMENTS_MAX: usize = 1 << 16;

/// Least width of the interval, which has 64 binary digits: at this width `k / n` is exact to 2^-39.
const WIDTH_MIN: u64 = 1 << 56;

/// Code of sets of elements of blocks up to some size.
#[derive(Clone, Debug)]
pub(crate) struct Subsets {
    /// 2^64 over every number of elements that may be left, rounded down, in place of a division.
    reciprocals: Box<[u64]>,
}

/// Returns the exact length in bytes of a set of `count` of `elements`: `log2 C(elements, count)` bits, to
/// the next byte.
///
/// # Panics
/// If `count` is above `elements`.
pub(crate) fn encoded_len(count: usize, elements: usize) -> usize {
    let few = count.min(elements - count);
    if few == 0 {
        return 0;
    }
    // Room for what the interval loses by rounding, and for the rounding of this product. Every machine
    // rounds a product and a quotient alike, but not a logarithm.
    let (mut sets, mut bits) = (1.0 + 2.0f64.powi(-20), 1);
    for at in 1..=few {
        sets *= (elements - few + at) as f64 / at as f64;
        if sets >= 2.0f64.powi(512) {
            (sets, bits) = (sets * 2.0f64.powi(-512), bits + 512);
        }
    }
    let exponent = (sets.to_bits() >> 52) as usize - 1023;
    (bits + exponent).div_ceil(8)
}

impl Subsets {
    /// Returns the code for blocks of at most `elements`.
    ///
    /// # Panics
    /// If `elements` is above [`ELEMENTS_MAX`].
    pub(crate) fn new(elements: usize) -> Subsets {
        assert!(elements <= ELEMENTS_MAX, "{elements} elements, at most {ELEMENTS_MAX}");
        let reciprocals = (0..=elements as u64).map(|left| u64::MAX / left.max(1));
        Subsets { reciprocals: reciprocals.collect() }
    }

    /// Returns the part of an interval that stands for "in the set".
    #[inline(always)]
    fn part(&self, width: u64, count: usize, left: usize) -> u64 {
        let one = (u128::from(width) * u128::from(self.reciprocals[left])) >> 64;
        one as u64 * count as u64
    }

    /// Writes the set of `count` of `elements`, given in order, into all of `output`, which has the exact
    /// length.
    pub(crate) fn write(
        &self,
        set: impl Iterator<Item = u32>,
        mut count: usize,
        elements: usize,
        output: &mut [u8],
    ) {
        let mut interval = Interval { low: 0, width: u64::MAX, output, written: 0 };
        let mut left = elements;
        for index in set {
            while left > elements - index as usize {
                interval.raise(self.part(interval.width, count, left));
                left -= 1;
            }
            // All that are left are in the set.
            if count == left {
                break;
            }
            interval.shrink(self.part(interval.width, count, left));
            (left, count) = (left - 1, count - 1);
        }
        interval.finish();
    }

    /// Calls `visit` with each element of the set of `count` of `elements` in `encoded`, in order.
    pub(crate) fn read(
        &self,
        encoded: &[u8],
        mut count: usize,
        elements: usize,
        mut visit: impl FnMut(usize),
    ) {
        let mut bytes = encoded.iter().copied();
        let mut next = || u64::from(bytes.next().unwrap_or(0));
        let mut place = (0..8).fold(0, |place, _| place << 8 | next());
        let (mut width, mut left) = (u64::MAX, elements);
        while count > 0 && count < left {
            let part = self.part(width, count, left);
            if place < part {
                visit(elements - left);
                (width, count) = (part, count - 1);
            } else {
                (place, width) = (place - part, width - part);
            }
            left -= 1;
            while width < WIDTH_MIN {
                (place, width) = (place << 8 | next(), width << 8);
            }
        }
        // Of a last few that are all in the set nothing was written.
        (elements - left..elements - left + count).for_each(visit);
    }
}

/// Interval of numbers from 0 to 1, in which every number stands for the answers so far.
struct Interval<'a> {
    /// Digits of the lower end behind those that were written.
    low: u64,
    width: u64,
    output: &'a mut [u8],
    written: usize,
}

impl Interval<'_> {
    /// Keeps all but the lowest `part`.
    #[inline(always)]
    fn raise(&mut self, part: u64) {
        self.add(part);
        self.width -= part;
        self.normalise();
    }

    /// Keeps the lowest `part`.
    #[inline(always)]
    fn shrink(&mut self, part: u64) {
        self.width = part;
        self.normalise();
    }

    /// Adds to the lower end, with a carry to the bytes that were written.
    #[inline(always)]
    fn add(&mut self, part: u64) {
        let (low, carry) = self.low.overflowing_add(part);
        self.low = low;
        if carry {
            let written = self.output[..self.written].iter_mut().rev();
            for byte in written {
                *byte = byte.wrapping_add(1);
                if *byte != 0 {
                    break;
                }
            }
        }
    }

    #[inline(always)]
    fn normalise(&mut self) {
        while self.width < WIDTH_MIN {
            self.output[self.written] = (self.low >> 56) as u8;
            self.written += 1;
            (self.low, self.width) = (self.low << 8, self.width << 8);
        }
    }

    /// Writes the number of the interval that ends with the last byte; the reader takes digits behind it
    /// for zeros.
    fn finish(mut self) {
        let rest = self.output.len() - self.written;
        // The interval is wider than the worth of the last byte's last digit.
        if (1..8).contains(&rest) {
            self.add((1 << (64 - 8 * rest)) - 1);
        }
        let digits = self.low.to_be_bytes().into_iter().chain(std::iter::repeat(0));
        let places = self.output[self.written..].iter_mut();
        places.zip(digits).for_each(|(place, digit)| *place = digit);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn read(encoded: &[u8], count: usize, elements: usize) -> Vec<usize> {
        let mut found = Vec::new();
        Subsets::new(elements).read(encoded, count, elements, |index| found.push(index));
        found
    }

    fn assert_reads_back(set: &BTreeSet<u32>, elements: usize) {
        let mut bytes = vec![0xaa; encoded_len(set.len(), elements)];
        Subsets::new(elements).write(set.iter().copied(), set.len(), elements, &mut bytes);
        let found = read(&bytes, set.len(), elements);
        assert!(found.iter().map(|index| *index as u32).eq(set.iter().copied()), "{set:?}");
    }

    proptest! {
        #[test]
        fn sets_read_back(set in prop::collection::btree_set(0..5000u32, 0..600), extra in 0..9000usize) {
            let elements = set.last().map_or(0, |last| *last as usize + 1) + extra;
            assert_reads_back(&set, elements);
            // What is left out of a block makes a dense set.
            let rest = (0..elements as u32).filter(|index| !set.contains(index)).collect();
            assert_reads_back(&rest, elements);
        }

        #[test]
        fn any_bytes_are_a_set(count in 0..50usize, extra in 0..9000usize, bytes: Vec<u8>) {
            let elements = count + extra;
            let filled = bytes.into_iter().chain(std::iter::repeat(0xff));
            let bytes: Vec<u8> = filled.take(encoded_len(count, elements)).collect();
            let found = read(&bytes, count, elements);
            prop_assert_eq!(found.len(), count);
            prop_assert!(found.is_sorted_by(|a, b| a < b));
            prop_assert!(found.iter().all(|index| *index < elements));
        }
    }

    /// Ends of the order of all sets, where a carry or a rounding would show.
    #[test]
    fn the_first_and_the_last_set_read_back() {
        for elements in [1, 2, 3, 64, 65, 4096, ELEMENTS_MAX] {
            for count in [0, 1, elements / 64, elements / 2, elements - 1, elements] {
                let (count, elements) = (count as u32, elements as u32);
                assert_reads_back(&(0..count).collect(), elements as usize);
                assert_reads_back(&(elements - count..elements).collect(), elements as usize);
                let spread = (0..count)
                    .map(|at| (u64::from(at) * u64::from(elements) / u64::from(count)) as u32);
                assert_reads_back(&spread.collect(), elements as usize);
            }
        }
    }

    /// Every set of a small block is another number.
    #[test]
    fn all_sets_of_a_small_block_read_back() {
        for elements in 0..=12 {
            for bits in 0..1u32 << elements {
                let set = (0..elements as u32).filter(|index| bits >> index & 1 == 1).collect();
                assert_reads_back(&set, elements);
            }
        }
    }

    #[test]
    fn the_length_is_within_a_byte_of_the_least() {
        // The logarithm of C(4096, 64) is 471.29.
        assert_eq!(encoded_len(64, 4096), 59);
        for (count, elements) in [(1, 256), (5, 9), (41, 4096), (656, 65_536), (30_000, 65_536)] {
            let term = |at: usize| ((elements - at) as f64 / (count - at) as f64).log2();
            let least: f64 = (0..count).map(term).sum();
            let found = 8.0 * encoded_len(count, elements) as f64;
            assert!(
                (least..least + 9.0).contains(&found),
                "{count} of {elements}: {found}, {least}"
            );
        }
    }
}
