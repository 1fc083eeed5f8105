//! LRU and SIEVE are equal to naive ones, lookup by lookup.

use std::collections::BTreeSet;

use proptest::prelude::*;
use thinwire_rows::{Cache, Lru, Policy, Sieve};

use crate::cases::{Versions, WIDTH, batches, bytes, look_up};

/// Cache of one policy as its paper describes it.
trait Reference {
    fn has(&self, row: u64) -> bool;
    fn touch(&mut self, row: u64);
    fn insert(&mut self, row: u64);
}

/// The rows by their last use, the last one first.
struct NaiveLru {
    slots: usize,
    rows: Vec<u64>,
}

impl Reference for NaiveLru {
    fn has(&self, row: u64) -> bool {
        self.rows.contains(&row)
    }

    fn touch(&mut self, row: u64) {
        self.rows.retain(|other| *other != row);
        self.rows.insert(0, row);
    }

    fn insert(&mut self, row: u64) {
        self.rows.insert(0, row);
        self.rows.truncate(self.slots);
    }
}

/// The queue, the newest row first, with a bit each for a use since the hand came by.
struct NaiveSieve {
    slots: usize,
    queue: Vec<(u64, bool)>,
    hand: Option<u64>,
}

impl NaiveSieve {
    fn evict(&mut self) {
        let at = |row| self.queue.iter().position(|(other, _)| *other == row).unwrap();
        let last = self.queue.len() - 1;
        let mut place = self.hand.map_or(last, at);
        while self.queue[place].1 {
            self.queue[place].1 = false;
            place = place.checked_sub(1).unwrap_or(last);
        }
        self.hand = place.checked_sub(1).map(|newer| self.queue[newer].0);
        self.queue.remove(place);
    }
}

impl Reference for NaiveSieve {
    fn has(&self, row: u64) -> bool {
        self.queue.iter().any(|(other, _)| *other == row)
    }

    fn touch(&mut self, row: u64) {
        self.queue.iter_mut().filter(|(other, _)| *other == row).for_each(|(_, used)| *used = true);
    }

    fn insert(&mut self, row: u64) {
        if self.slots == 0 {
            return;
        }
        if self.queue.len() == self.slots {
            self.evict();
        }
        self.queue.insert(0, (row, false));
    }
}

/// Returns the rows that the reference does not have, ascending, and gives them to it.
fn expected(reference: &mut dyn Reference, ids: &[u64]) -> Vec<u64> {
    let missing: BTreeSet<u64> = ids.iter().copied().filter(|id| !reference.has(*id)).collect();
    let mut seen = BTreeSet::new();
    for id in ids.iter().filter(|id| !missing.contains(id)) {
        if seen.insert(*id) {
            reference.touch(*id);
        }
    }
    missing.iter().for_each(|row| reference.insert(*row));
    missing.into_iter().collect()
}

fn check<P: Policy>(mut cache: Cache<P>, mut reference: impl Reference, batches: &[Vec<u64>]) {
    for batch in batches {
        let missing = look_up(&mut cache, &Versions::new(), batch);
        assert_eq!(missing, expected(&mut reference, batch));
    }
}

proptest! {
    #[test]
    fn lru_is_the_naive_one(batches in batches(), slots in 0_usize..12) {
        let reference = NaiveLru { slots, rows: Vec::new() };
        check(Cache::new(WIDTH, bytes(slots), Lru::new), reference, &batches);
    }

    #[test]
    fn sieve_is_that_of_its_paper(batches in batches(), slots in 0_usize..12) {
        let reference = NaiveSieve { slots, queue: Vec::new(), hand: None };
        check(Cache::new(WIDTH, bytes(slots), Sieve::new), reference, &batches);
    }
}

#[test]
fn sieve_spares_the_rows_that_were_used_again() {
    let mut cache = Cache::new(WIDTH, bytes(4), Sieve::new);
    let source = Versions::new();
    for row in [0, 1, 2, 3, 0, 2, 4] {
        look_up(&mut cache, &source, &[row]);
    }
    // The hand has spared 0 and replaced 1. It continues from 2, spares it, and replaces 3.
    assert_eq!(look_up(&mut cache, &source, &[5, 0, 2, 4]), [5]);
    assert_eq!(look_up(&mut cache, &source, &[3]), [3]);
}
