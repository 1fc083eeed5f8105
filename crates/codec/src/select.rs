//! Selection of the largest elements.
//!
//! Exactly the `count` largest magnitudes are selected; of equal ones, the first. Nothing is sorted: the
//! bits of a magnitude are an unsigned number, and three histograms of its digits find the smallest one
//! that is selected. If few of many are selected, a sample gives a threshold below which elements are
//! ignored, so that one pass over memory suffices. A sample that misleads costs time and does not change
//! the result.

use crate::Input;
use crate::kernel::{Candidate, imp};

/// Selects the `count` largest of values plus residual, in the order of indices; leaves the sums in
/// the values.
pub(crate) fn largest(input: &mut Input<'_>, count: usize) -> Vec<Candidate> {
    let candidates = candidates(input, count);
    if candidates.len() >= count {
        return largest_of(candidates, count);
    }
    let values = input.values();
    let bits = || values.iter().map(|value| value.to_bits());
    let mut cut = Cut::find(bits, count);
    let all = (0..).zip(bits()).map(|(index, bits)| Candidate { index, bits });
    let mut found = Vec::with_capacity(count);
    found.extend(all.filter(|candidate| cut.keeps(candidate.bits)));
    found
}

/// Selects the `count` largest of at least as many candidates, in their order.
pub(crate) fn largest_of(mut candidates: Vec<Candidate>, count: usize) -> Vec<Candidate> {
    let mut cut = Cut::find(|| candidates.iter().map(|candidate| candidate.bits), count);
    let mut kept = 0;
    // Every candidate is written, and overwritten by the next if it is not kept: no branch to predict.
    for at in 0..candidates.len() {
        let candidate = candidates[at];
        candidates[kept] = candidate;
        kept += usize::from(cut.keeps(candidate.bits));
    }
    candidates.truncate(kept);
    candidates
}

/// Smallest magnitude that is kept.
#[derive(Debug, PartialEq)]
struct Cut {
    /// Bits of the magnitude.
    bits: u32,
    /// Number of elements of exactly this magnitude that are kept.
    equal: usize,
}

/// Shift and number of bits of every digit, the highest first.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];

const MAGNITUDE: u32 = i32::MAX as u32;

impl Cut {
    /// Finds the cut that keeps `count` of at least as many `bits`.
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

    /// Returns whether an element is kept; to be called for each element in order.
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

/// Elements between two checks of the number of candidates.
const CHUNK: usize = 4096;
/// Elements below which a slice stays in a cache, so that three passes cost little.
const FEW: usize = 1 << 15;
const SAMPLES: usize = 1 << 13;
/// Threshold that no magnitude reaches.
const NOTHING: u32 = 1 << 31;

/// Adds the residual to the values and returns elements that include the `count` largest, or fewer
/// than `count` if no sample could narrow them down.
fn candidates(input: &mut Input<'_>, count: usize) -> Vec<Candidate> {
    let length = input.len();
    // A sample pays only where most elements can be ignored.
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
    input.for_chunks(CHUNK, |first, chunk| {
        imp().collect(chunk, first as u32, threshold, &mut found);
        // The sample misled: the rest of the pass only adds the residual.
        if found.len() > limit {
            found.clear();
            threshold = NOTHING;
        }
    });
    found
}

/// Adds the residual to the values and returns the elements whose magnitude has at least the bits
/// `threshold`, which are not 0. `expected` is their likely number.
pub(crate) fn reaching(input: &mut Input<'_>, threshold: u32, expected: usize) -> Vec<Candidate> {
    let mut found = Vec::with_capacity(expected + FEW);
    input.for_chunks(CHUNK, |first, chunk| {
        imp().collect(chunk, first as u32, threshold, &mut found);
    });
    found
}

/// Returns the bits of a magnitude that about `count` elements reach: that of the sampled element
/// `deviations` standard deviations below the expected cut.
pub(crate) fn sampled_threshold(input: &Input<'_>, count: usize, deviations: f64) -> u32 {
    let samples = SAMPLES.min(input.len());
    if samples == 0 {
        return 0;
    }
    let stride = input.len() / samples;
    let position = |sample: usize| {
        // A fixed jitter, since gradients may have a period.
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
