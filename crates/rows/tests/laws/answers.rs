//! Answers are those of the source, and the cache keeps to its memory.

use proptest::prelude::*;
use thinwire_rows::{Cache, Kind, Lookup, Lru, SLOT_BYTES, Sieve};

use crate::cases::{ROWS, Versions, WIDTH, batches, bytes, caches, foreseen_hits, look_up};

proptest! {
    #[test]
    fn answers_are_those_of_the_source(batches in batches(), slots in 0_usize..10) {
        for (name, mut cache) in caches(slots) {
            let mut source = Versions::new();
            let (mut lookup, mut out) = (Lookup::new(), Vec::new());
            for (batch, time) in batches.iter().zip(0..) {
                out.resize(batch.len() * WIDTH, 0xEE);
                cache.read(&source, batch, &mut lookup, &mut out).unwrap();
                prop_assert_eq!(&out, &source.values(batch), "{}", name);
                // A push to some of the rows, and to others.
                let pushed: Vec<u64> = batch.iter().map(|row| (row + time % 2) % ROWS).collect();
                pushed.iter().for_each(|row| source.0[*row as usize] += 1);
                cache.write(&pushed, &source.values(&pushed), 0).unwrap();
            }
            let rows: u64 = cache.hits().hits + cache.hits().misses;
            prop_assert_eq!(cache.hits().bytes_missed, cache.hits().misses * WIDTH as u64);
            prop_assert!(rows <= cache.hits().ids);
        }
        for ahead in 0..5 {
            foreseen_hits(&batches, slots, ahead);
        }
    }

    #[test]
    fn lookups_may_overlap(batches in batches(), slots in 0_usize..10, turns in any::<u64>()) {
        let source = Versions::new();
        for (name, mut cache) in caches(slots) {
            let mut under_way: Vec<(&Vec<u64>, Lookup, Vec<u8>)> = Vec::new();
            for (batch, turn) in batches.iter().zip(0_u32..) {
                let (mut lookup, mut out) = (Lookup::new(), vec![0xEE; batch.len() * WIDTH]);
                cache.begin(batch, 0, &mut lookup, &mut out).unwrap();
                under_way.push((batch, lookup, out));
                while under_way.len() > 1 + (turns >> turn & 1) as usize {
                    let oldest = (turns >> (turn + 7) & 1) as usize;
                    let (batch, mut lookup, mut out) = under_way.swap_remove(oldest);
                    let values = source.values(lookup.missing());
                    cache.finish(&mut lookup, &values, 0, &mut out).unwrap();
                    prop_assert_eq!(&out, &source.values(batch), "{}", name);
                }
            }
        }
    }

    #[test]
    fn memory_never_exceeds_its_limit(
        width in 1_usize..300, bytes in 0_u64..20_000, ids in prop::collection::vec(any::<u64>(), 0..300)
    ) {
        let mut cache = Cache::new(width, bytes, Lru::new);
        let policy = 20 * cache.slots();
        let all = |cache: &Cache<Lru>| cache.bytes() as u64;
        // Without slots there is a table of one cell.
        let limit = bytes.max(8) - policy as u64;
        prop_assert!(all(&cache) <= limit);
        prop_assert!(((cache.slots() + 1) * (width + SLOT_BYTES)) as u64 > bytes, "none is left over");
        let (mut lookup, mut out) = (Lookup::new(), vec![0; ids.len() * width]);
        cache.begin(&ids, 0, &mut lookup, &mut out).unwrap();
        let values = vec![1; lookup.missing().len() * width];
        cache.finish(&mut lookup, &values, 0, &mut out).unwrap();
        prop_assert!(all(&cache) <= limit);
        prop_assert!(out.iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_full_cache_that_holds_all_misses_nothing() {
    let source = Versions::new();
    let all: Vec<u64> = (0..ROWS).collect();
    for (name, mut cache) in caches(ROWS as usize) {
        look_up(&mut cache, &source, &all);
        assert_eq!(look_up(&mut cache, &source, &all), [], "{name}");
    }
}

#[test]
fn a_row_of_the_last_number_is_answered() {
    let (mut lookup, mut out) = (Lookup::new(), [0; 3]);
    let mut cache = Cache::new(1, 2 * (1 + SLOT_BYTES as u64), Sieve::new);
    for _ in 0..3 {
        cache.begin(&[u64::MAX, 3, u64::MAX], 0, &mut lookup, &mut out).unwrap();
        let values: Vec<u8> = lookup.missing().iter().map(|row| *row as u8).collect();
        cache.finish(&mut lookup, &values, 0, &mut out).unwrap();
        assert_eq!(out, [255, 3, 255]);
    }
}

#[test]
fn refusals_change_nothing_and_name_both_values() {
    let mut cache = Cache::new(WIDTH, bytes(3), Lru::new);
    let (mut lookup, mut out) = (Lookup::new(), [0; 2 * WIDTH]);
    let error = cache.begin(&[1, 2, 3], 0, &mut lookup, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "output of 10 bytes, expected 3 rows of 5");
    cache.begin(&[2, 1], 0, &mut lookup, &mut out).unwrap();
    let error = cache.finish(&mut lookup, &[0; 9], 0, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "values of 9 bytes, expected 2 rows of 5");
    let values = Versions::new().values(&[1, 2]);
    let error = cache.finish(&mut lookup, &values, 0, &mut out[1..]).unwrap_err();
    assert_eq!((error.kind(), cache.hits().evictions), (Kind::Length, 0));
    cache.finish(&mut lookup, &values, 0, &mut out).unwrap();
    assert_eq!(out, *Versions::new().values(&[2, 1]));
    let mut cache = Cache::new(WIDTH + 1, 0, Lru::new);
    let error = cache.read(&Versions::new(), &[], &mut lookup, &mut []).unwrap_err();
    assert_eq!(error.to_string(), "source with rows of 5 bytes, expected 6");
}
