//! Choice of a fixed number of elements from those that reach a threshold.
//!
//! If more elements reach the threshold than are wanted, some of them are chosen; if fewer do, all of
//! them and some others. The number is fixed, so the length of an encoding is known beforehand.
//!
//! Law: the chosen elements are exactly as many as asked for, and in order.

use crate::kernel::Candidate;
use crate::select;

/// Choice among more elements than are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// The first ones from a given position on, cyclically.
    First,
    /// The largest magnitudes.
    Largest,
}

impl Crowd {
    /// Chooses `count` elements of `values`, of which `passed` reach the threshold, in the order of
    /// indices.
    pub(crate) fn choose(
        self,
        passed: Vec<Candidate>,
        count: usize,
        first: u32,
        values: &[f32],
    ) -> Vec<Candidate> {
        match self {
            _ if passed.len() <= count => fill(&passed, count, first, values),
            Crowd::Largest => select::largest_of(passed, count),
            Crowd::First => from(passed, count, first),
        }
    }
}

/// Chooses `count` of the elements that passed, from index `first` on, cyclically.
fn from(mut passed: Vec<Candidate>, count: usize, first: u32) -> Vec<Candidate> {
    let start = before(&passed, first);
    let around = (start + count).saturating_sub(passed.len());
    passed.truncate(start + count);
    passed.drain(around..start);
    passed
}

/// Chooses all elements that passed, and others from index `first` on, cyclically.
fn fill(passed: &[Candidate], count: usize, first: u32, values: &[f32]) -> Vec<Candidate> {
    let (mut missing, length) = ((count - passed.len()) as u32, values.len() as u32);
    let tail = end(passed, first, length, &mut missing);
    let head = end(passed, 0, first, &mut missing);
    let all = |from: u32, to: u32| {
        (from..to).map(|index| Candidate { index, bits: values[index as usize].to_bits() })
    };
    let own = |from, to| &passed[before(passed, from)..before(passed, to)];
    let mut chosen = Vec::with_capacity(count);
    chosen.extend(all(0, head));
    chosen.extend_from_slice(own(head, first));
    chosen.extend(all(first, tail));
    chosen.extend_from_slice(own(tail, length));
    chosen
}

/// Returns the end of the elements from `from` on, but before `to`, that include `missing` elements
/// that did not pass; leaves the number that is still missing.
fn end(passed: &[Candidate], from: u32, to: u32, missing: &mut u32) -> u32 {
    let mut end = from;
    for candidate in &passed[before(passed, from)..before(passed, to)] {
        let others = candidate.index - end;
        if others >= *missing {
            break;
        }
        *missing -= others;
        end = candidate.index + 1;
    }
    let last = (*missing).min(to - end);
    *missing -= last;
    end + last
}

/// Returns the number of elements with an index below `index`.
fn before(passed: &[Candidate], index: u32) -> usize {
    passed.partition_point(|candidate| candidate.index < index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As many as there are places, of which those that passed come first.
    fn by_walking(passed: &[Candidate], count: usize, first: u32, values: &[f32]) -> Vec<u32> {
        let around = || (first..values.len() as u32).chain(0..first);
        let own = |index: &u32| passed.iter().any(|candidate| candidate.index == *index);
        let others = around().filter(|index| !own(index));
        let mut found: Vec<u32> = around().filter(own).chain(others).take(count).collect();
        found.sort_unstable();
        found
    }

    proptest! {
        #[test]
        fn all_pass_from_the_first_on_and_others_only_where_places_are_left(
            values in prop::collection::vec(-2.0..2.0f32, 1..200),
            threshold in 0.0..2.0f32,
            count in 0..200usize,
            first in 0..200usize,
        ) {
            let (count, first) = (count.min(values.len()), (first % values.len()) as u32);
            let candidates = (0..).zip(&values).map(|(index, x)| Candidate { index, bits: x.to_bits() });
            let passed: Vec<_> =
                candidates.filter(|candidate| f32::from_bits(candidate.bits).abs() >= threshold).collect();
            let chosen = Crowd::First.choose(passed.clone(), count, first, &values);
            let indices: Vec<u32> = chosen.iter().map(|candidate| candidate.index).collect();
            prop_assert_eq!(indices, by_walking(&passed, count, first, &values));
            prop_assert!(chosen.iter().all(|chosen| chosen.bits == values[chosen.index as usize].to_bits()));
        }
    }
}
