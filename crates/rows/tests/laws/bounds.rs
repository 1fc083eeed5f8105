//! No policy has more hits than Belady's bound, and the foreseen one has as many.

use std::collections::BTreeSet;

use proptest::prelude::*;
use thinwire_rows::{Cache, Foreseen, Start, Trace, belady, by_frequency};

use crate::cases::{ROWS, Versions, WIDTH, batches, bytes, caches, foreseen_hits, look_up};

fn trace(batches: &[Vec<u64>]) -> Trace {
    let mut trace = Trace::new();
    batches.iter().for_each(|batch| trace.push(batch));
    trace
}

proptest! {
    #[test]
    fn foreseen_is_belady(batches in batches(), slots in 0_usize..12) {
        let hits = foreseen_hits(&batches, slots, batches.len() as u32);
        let bound = belady(&trace(&batches), slots, Start::Cold);
        prop_assert_eq!(hits.hits, bound);
        prop_assert_eq!(hits.hits + hits.misses, trace(&batches).accesses() as u64);
    }

    #[test]
    fn no_policy_exceeds_belady(batches in batches(), slots in 0_usize..12, ahead in 0_u32..6) {
        let bound = belady(&trace(&batches), slots, Start::Cold);
        for (name, mut cache) in caches(slots) {
            for batch in &batches {
                look_up(&mut cache, &Versions::new(), batch);
            }
            prop_assert!(cache.hits().hits <= bound, "{}", name);
        }
        prop_assert!(foreseen_hits(&batches, slots, ahead).hits <= bound);
        prop_assert!(bound <= belady(&trace(&batches), slots, Start::Warm));
    }

    #[test]
    fn the_most_frequent_rows_are_the_static_optimum(batches in batches(), slots in 0_usize..12) {
        let order = by_frequency(&trace(&batches));
        let distinct = |batch: &Vec<u64>| batch.iter().copied().collect::<BTreeSet<u64>>();
        let used: Vec<BTreeSet<u64>> = batches.iter().map(distinct).collect();
        for (row, count) in &order {
            prop_assert_eq!(*count, used.iter().filter(|rows| rows.contains(row)).count() as u64);
        }
        let optimum: u64 = order.iter().take(slots).map(|(_, count)| count).sum();
        prop_assert!(optimum <= belady(&trace(&batches), slots, Start::Warm));
        // No other set is better: the counts fall.
        prop_assert!(order.is_sorted_by(|(_, count), (_, next)| count >= next));
    }
}

#[test]
fn a_cache_smaller_than_a_batch_still_hits() {
    let batches = vec![(0..ROWS).collect::<Vec<u64>>(); 5];
    assert_eq!(foreseen_hits(&batches, 6, 2).hits, 4 * 6);
    assert_eq!(belady(&trace(&batches), 6, Start::Cold), 4 * 6);
    assert_eq!(belady(&trace(&batches), 6, Start::Warm), 5 * 6);
}

#[test]
fn a_row_that_is_told_stays_before_one_that_is_not() {
    for first in [[0, 1], [1, 0]] {
        let mut cache = Cache::new(WIDTH, bytes(2), |slots| Foreseen::new(slots, 2));
        let source = Versions::new();
        first.iter().for_each(|row| drop(look_up(&mut cache, &source, &[*row])));
        assert!(cache.policy_mut().tell(&[2, 2]) && cache.policy_mut().tell(&[0]));
        assert!(!cache.policy_mut().tell(&[5]), "no more than two");
        assert_eq!(look_up(&mut cache, &source, &[2]), [2]);
        assert_eq!(cache.policy_mut().batches_ahead(), 1);
        assert_eq!(look_up(&mut cache, &source, &[0, 2]), []);
    }
}
