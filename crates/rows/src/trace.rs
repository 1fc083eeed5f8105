//! Traces of accesses, and bounds on the hits of any policy.
//!
//! A batch finds the rows that are cached when it begins; afterwards the cache may hold any of these and of
//! the batch's rows, up to its number of slots. An access is therefore a hit if its row kept a slot since its
//! previous use. Maximising the number of such intervals, with at most one per slot at a time, is interval
//! scheduling on identical machines, which is solved by dropping the interval that ends last (Faigle and
//! Nawijn, "Note on scheduling intervals on-line", 1995).

use std::collections::BTreeSet;

use crate::mix::RowMap;
use crate::unique::Unique;

/// Batches of rows in order of use.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    rows: Vec<u64>,
    ends: Vec<usize>,
    unique: Unique,
}

/// State of a cache before the first batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Empty.
    Cold,
    /// Full of the rows that give the most hits.
    Warm,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Adds a batch of ids, in any order and with repetitions.
    pub fn push(&mut self, ids: &[u64]) {
        self.unique.take(ids);
        self.rows.extend_from_slice(self.unique.rows());
        self.ends.push(self.rows.len());
    }

    /// Returns the rows of each batch, ascending.
    pub fn batches(&self) -> impl DoubleEndedIterator<Item = &[u64]> + ExactSizeIterator {
        let start = |batch: usize| batch.checked_sub(1).map_or(0, |before| self.ends[before]);
        (0..self.ends.len()).map(move |batch| &self.rows[start(batch)..self.ends[batch]])
    }

    /// Returns the number of accesses: unique rows per batch, summed over batches.
    pub fn accesses(&self) -> usize {
        self.rows.len()
    }
}

/// Returns all rows with the number of batches that use them, most frequent first, then by ascending id.
/// The first `k` rows are the best constant content of a cache of `k` slots that is filled in advance;
/// the sum of their counts is the number of hits of that cache.
pub fn by_frequency(trace: &Trace) -> Vec<(u64, u64)> {
    let mut counts: RowMap<u64> = RowMap::default();
    trace.rows.iter().for_each(|row| *counts.entry(*row).or_default() += 1);
    let mut order: Vec<(u64, u64)> = counts.into_iter().collect();
    order.sort_unstable_by_key(|(row, count)| (std::cmp::Reverse(*count), *row));
    order
}

/// Returns the largest number of hits of any policy with this many slots (Belady, "A study of replacement
/// algorithms for a virtual-storage computer", 1966; here a row need not be cached).
pub fn belady(trace: &Trace, slots: usize, start: Start) -> u64 {
    let (next, first) = next_uses(trace);
    // Cached rows, ordered by next use.
    let mut kept: BTreeSet<(usize, u64)> = BTreeSet::new();
    if start == Start::Warm {
        kept.extend(first.into_iter().map(|(row, batch)| (batch, row)));
        trim(&mut kept, slots);
    }
    let (mut hits, mut at) = (0, 0);
    for (batch, rows) in trace.batches().enumerate() {
        for row in rows {
            hits += u64::from(kept.remove(&(batch, *row)));
            kept.extend(next[at].map(|next| (next, *row)));
            at += 1;
        }
        trim(&mut kept, slots);
    }
    hits
}

fn trim(kept: &mut BTreeSet<(usize, u64)>, slots: usize) {
    while kept.len() > slots {
        kept.pop_last();
    }
}

/// Returns the batch of the next use after each access, and of the first use of each row.
fn next_uses(trace: &Trace) -> (Vec<Option<usize>>, RowMap<usize>) {
    let mut next = Vec::with_capacity(trace.rows.len());
    let mut later: RowMap<usize> = RowMap::default();
    for (batch, rows) in trace.batches().enumerate().rev() {
        next.extend(rows.iter().rev().map(|row| later.insert(*row, batch)));
    }
    next.reverse();
    (next, later)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the largest number of hits over every choice of content after every batch. Batches are bit
    /// sets.
    fn most_hits(batches: &[u32], slots: u32, content: u32) -> u32 {
        let Some((batch, rest)) = batches.split_first() else { return 0 };
        let all = content | batch;
        let contents = (0..=all).filter(|kept| kept & !all == 0 && kept.count_ones() <= slots);
        let after = contents.map(|kept| most_hits(rest, slots, kept)).max().unwrap();
        (content & batch).count_ones() + after
    }

    proptest! {
        #[test]
        fn belady_is_the_most_of_all_choices(
            batches in prop::collection::vec(0_u32..16, 0..6), slots in 0_u32..4
        ) {
            let mut trace = Trace::new();
            for batch in &batches {
                trace.push(&(0..4).filter(|row| batch >> row & 1 == 1).collect::<Vec<u64>>());
            }
            let cold = u64::from(most_hits(&batches, slots, 0));
            prop_assert_eq!(belady(&trace, slots as usize, Start::Cold), cold);
            let starts = (0_u32..16).filter(|content| content.count_ones() <= slots);
            let warm = starts.map(|content| most_hits(&batches, slots, content)).max().unwrap();
            prop_assert_eq!(belady(&trace, slots as usize, Start::Warm), u64::from(warm));
        }
    }

    #[test]
    fn rows_are_ordered_by_their_batches() {
        let mut trace = Trace::new();
        [&[7, 3, 3][..], &[3, 9], &[], &[9, 1, 3]].into_iter().for_each(|ids| trace.push(ids));
        assert_eq!(by_frequency(&trace), [(3, 3), (9, 2), (1, 1), (7, 1)]);
        assert_eq!(trace.accesses(), 7);
        assert_eq!(trace.batches().collect::<Vec<_>>(), [&[3, 7][..], &[3, 9], &[], &[1, 3, 9]]);
    }
}
