//! Which elements are the largest.
//!
//! Exactly the `count` largest magnitudes, of equals those that come first. Nothing is sorted:
//! a magnitude's bits are an unsigned number, and three counts of its digits find the smallest
//! that is kept. Where few of many are kept, a sample tells beforehand which ones can be ignored,
//! so that one pass over memory suffices; a sample that misleads costs time and changes nothing.

use crate::Input;
use crate::kernel::{Candidate, imp};

/// The `count` largest of values plus residual, in the order of indices; leaves the sums in the
/// values.
pub(crate) fn largest(input: &mut Input<'_>, count: usize) -> Vec<Candidate> {
    let candidates = candidates(input, count);
    if candidates.len() >= count {
        return largest_of(candidates, count);
    }
    let values: &[f32] = match input {
        Input::Plain(values) => values,
        Input::Feedback { values, .. } => values,
    };
    let bits = || values.iter().map(|value| value.to_bits());
    let mut cut = Cut::find(bits, count);
    let all = (0..).zip(bits()).map(|(index, bits)| Candidate { index, bits });
    let mut found = Vec::with_capacity(count);
    found.extend(all.filter(|candidate| cut.keeps(candidate.bits)));
    found
}

/// The `count` largest of `candidates`, of which there are as many at least, in their order.
pub(crate) fn largest_of(mut candidates: Vec<Candidate>, count: usize) -> Vec<Candidate> {
    let mut cut = Cut::find(|| candidates.iter().map(|candidate| candidate.bits), count);
    let mut kept = 0;
    // Each is written, and the next one over it if it is not kept: there is nothing to guess.
    for at in 0..candidates.len() {
        let candidate = candidates[at];
        candidates[kept] = candidate;
        kept += usize::from(cut.keeps(candidate.bits));
    }
    candidates.truncate(kept);
    candidates
}

/// The smallest magnitude that is kept.
#[derive(Debug, PartialEq)]
struct Cut {
    /// Its bits.
    bits: u32,
    /// How many of exactly this magnitude are kept.
    equal: usize,
}

/// Where a digit begins, and how many bits it has; the highest first.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];

const MAGNITUDE: u32 = i32::MAX as u32;

impl Cut {
    /// The cut that keeps `count` of `bits`, of which there are as many at least.
    fn find<I: Iterator<Item = u32>>(bits: impl Fn() -> I, count: usize) -> Cut {
        let (mut prefix, mut equal) = (0, count);
        for (shift, width) in DIGITS {
            let mut histogram = [0usize; 1 << 11];
            for bits in bits() {
                let bits = bits & MAGNITUDE;
                if bits >> shift >> width == prefix {
                    histogram[(bits >> shift & ((1 << width) - 1)) as usize] += 1;
                }
            }
            let mut digit = (1 << width) - 1;
            while equal > histogram[digit] {
                equal -= histogram[digit];
                digit -= 1;
            }
            prefix = prefix << width | digit as u32;
        }
        Cut { bits: prefix, equal }
    }

    /// Whether an element is kept, asked of each in order.
    #[inline(always)]
    fn keeps(&mut self, bits: u32) -> bool {
        let magnitude = bits & MAGNITUDE;
        if magnitude == self.bits && self.equal > 0 {
            self.equal -= 1;
            return true;
        }
        magnitude > self.bits
    }
}

/// Elements between two looks at how many candidates there are.
const CHUNK: usize = 4096;
/// Fewer elements than this are near enough to be read three times.
const FEW: usize = 1 << 15;
const SAMPLES: usize = 1 << 13;
/// No magnitude has these bits or more.
const NOTHING: u32 = 1 << 31;

/// Adds the residual to the values and lists elements among which the largest are: at least
/// `count`, or too few to be of use.
fn candidates(input: &mut Input<'_>, count: usize) -> Vec<Candidate> {
    let length = input.len();
    let mut threshold = if length < FEW || count > length / 2 {
        NOTHING
    } else {
        sampled_threshold(input, count, 3.0).max(1)
    };
    let limit = 4 * count + FEW;
    let mut found = Vec::new();
    if threshold != NOTHING {
        found.reserve_exact(count + count / 2 + FEW);
    }
    for_chunks(input, |first, chunk| {
        imp().collect(chunk, first, threshold, &mut found);
        if found.len() > limit {
            found.clear();
            threshold = NOTHING;
        }
    });
    found
}

/// Adds the residual to the values and lists the elements whose magnitude has at least the bits
/// `threshold`, which are not 0: about `expected` of them.
pub(crate) fn reaching(input: &mut Input<'_>, threshold: u32, expected: usize) -> Vec<Candidate> {
    let mut found = Vec::with_capacity(expected + FEW);
    for_chunks(input, |first, chunk| {
        imp().collect(chunk, first, threshold, &mut found);
    });
    found
}

fn for_chunks(input: &mut Input<'_>, mut visit: impl FnMut(u32, Input<'_>)) {
    let firsts = (0..).step_by(CHUNK);
    match input {
        Input::Plain(values) => {
            values.chunks(CHUNK).zip(firsts).for_each(|(chunk, at)| visit(at, Input::Plain(chunk)));
        }
        Input::Feedback { values, residual } => {
            let chunks = values.chunks_mut(CHUNK).zip(residual.chunks(CHUNK));
            for ((values, residual), first) in chunks.zip(firsts) {
                visit(first, Input::Feedback { values, residual });
            }
        }
    }
}

/// Bits that about `count` magnitudes reach, most likely somewhat more: those of a sample's element
/// so many standard deviations below where the cut is expected.
pub(crate) fn sampled_threshold(input: &Input<'_>, count: usize, deviations: f64) -> u32 {
    let samples = SAMPLES.min(input.len());
    if samples == 0 {
        return 0;
    }
    let stride = input.len() / samples;
    let position = |sample: usize| {
        // A fixed jitter, for gradients may have a period.
        sample * stride + ((sample as u32).wrapping_mul(0x9e37_79b9) >> 8) as usize % stride
    };
    let sum = |at: usize| match input {
        Input::Plain(values) => values[at],
        Input::Feedback { values, residual } => values[at] + residual[at],
    };
    let mut sample: Vec<u32> =
        (0..samples).map(|sample| sum(position(sample)).to_bits() & MAGNITUDE).collect();
    let expected = count as f64 * samples as f64 / input.len() as f64;
    let rank = (expected + deviations * (expected.sqrt() + 1.0)) as usize;
    let (_, threshold, _) = sample.select_nth_unstable_by(rank.min(samples - 1), |a, b| b.cmp(a));
    *threshold
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_sorting(values: &[f32], count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by_key(|index| std::cmp::Reverse(values[*index as usize].to_bits() & MAGNITUDE));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    fn selected(values: &[f32], count: usize) -> Vec<u32> {
        let chosen = largest(&mut Input::Plain(values), count);
        assert!(chosen.iter().all(|c| c.bits == values[c.index as usize].to_bits()));
        chosen.iter().map(|candidate| candidate.index).collect()
    }

    proptest! {
        #[test]
        fn the_largest_are_those_that_sorting_finds(
            values in prop::collection::vec(prop_oneof![any::<f32>(), (-3i8..4).prop_map(f32::from)], 1..300),
            count in 1..300usize,
        ) {
            let count = count.min(values.len());
            prop_assert_eq!(selected(&values, count), by_sorting(&values, count));
        }

        #[test]
        fn a_sample_changes_nothing(seed: u32, period in 1..70_000u32, levels in 1..2000u32, count in 1..2000usize) {
            let value = |i: u32| {
                let random = (i % period + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9) >> 7;
                (random % levels) as f32 - levels as f32 / 3.0
            };
            let values: Vec<f32> = (0..FEW as u32 + 40_001).map(value).collect();
            prop_assert_eq!(selected(&values, count), by_sorting(&values, count));
        }
    }

    #[test]
    fn a_sample_that_misleads_changes_nothing() {
        // The large values are where no sample looks, then only there.
        for inside in [false, true] {
            let length = 4 * FEW;
            let stride = length / SAMPLES;
            let mut values = vec![0.5; length];
            for sample in 0..SAMPLES {
                let jitter = ((sample as u32).wrapping_mul(0x9e37_79b9) >> 8) as usize % stride;
                let at = sample * stride + jitter;
                values[if inside { at } else { at ^ 1 }] = 1.0 + sample as f32;
            }
            assert_eq!(selected(&values, 100), by_sorting(&values, 100));
            assert_eq!(selected(&values, 9000), by_sorting(&values, 9000));
        }
    }
}
