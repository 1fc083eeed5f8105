//! Who is sent of those that a threshold lets through.
//!
//! Of more than there are places some, of fewer all and others beside them: the number of elements
//! is known beforehand, so that the length is.
//!
//! Law: the elements are as many as there are places, and in order.

use crate::kernel::Candidate;
use crate::select;

/// Who is sent where more pass than there are places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// Whoever comes first, from a given element on and around.
    First,
    /// The largest.
    Largest,
}

impl Crowd {
    /// The `count` elements of `values` that are sent, where `passed` did, in the order of indices.
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

/// `count` of those that passed, from the first whose index is at least `first` on and around.
fn from(mut passed: Vec<Candidate>, count: usize, first: u32) -> Vec<Candidate> {
    let start = before(&passed, first);
    let around = (start + count).saturating_sub(passed.len());
    passed.truncate(start + count);
    passed.drain(around..start);
    passed
}

/// All that passed, and from the element `first` on and around as many others as there are places.
fn fill(passed: &[Candidate], count: usize, first: u32, values: &[f32]) -> Vec<Candidate> {
    let (mut missing, length) = ((count - passed.len()) as u32, values.len() as u32);
    let tail = end(passed, (first, length), &mut missing);
    let head = end(passed, (0, first), &mut missing);
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

/// Where elements from `from` on, but before `to`, end among which `missing` did not pass; if there
/// are fewer, the rest is missing still.
fn end(passed: &[Candidate], (from, to): (u32, u32), missing: &mut u32) -> u32 {
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

/// How many have an index below `index`.
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
