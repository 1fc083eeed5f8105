//! No value is older than its reader allows, and no value that is young enough is fetched again.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use thinwire_rows::{Cache, Lookup, Lru, SLOT_BYTES};

use crate::cases::{AnyCache, ROWS, WIDTH, bytes, caches};

/// Move of a worker.
#[derive(Clone, Debug)]
enum Move {
    /// Look rows up, after some steps, with values at most so many steps old.
    Read(Vec<u64>, u64, u64),
    /// Write rows, with values of so many steps ago.
    Write(Vec<u64>, u64),
    Forget(Vec<u64>),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let rows = || prop::collection::vec(0..ROWS, 0..10);
    let step = prop_oneof![
        4 => (rows(), 0_u64..3, 0_u64..6).prop_map(|(rows, steps, bound)| Move::Read(rows, steps, bound)),
        1 => (rows(), 0_u64..6).prop_map(|(rows, ago)| Move::Write(rows, ago)),
        1 => rows().prop_map(Move::Forget),
    ];
    prop::collection::vec(step, 0..40)
}

/// Values that are the times at which they were read.
fn times(rows: &[u64], time: u64) -> Vec<u8> {
    rows.iter().flat_map(|_| [time as u8; WIDTH]).collect()
}

/// Looks rows up at step `now`; returns the missing ones and the time of each value.
fn read(cache: &mut AnyCache, rows: &[u64], now: u64, bound: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut lookup, mut out) = (Lookup::new(), vec![0xEE; rows.len() * WIDTH]);
    cache.begin(rows, now.saturating_sub(bound), &mut lookup, &mut out).unwrap();
    let missing = lookup.missing().to_vec();
    cache.finish(&mut lookup, &times(&missing, now), now, &mut out).unwrap();
    (missing, out.chunks(WIDTH).map(|value| u64::from(value[0])).collect())
}

proptest! {
    #[test]
    fn no_value_is_older_than_its_reader_allows(moves in moves(), slots in 0_usize..10) {
        for (name, mut cache) in caches(slots) {
            let mut now = 100;
            let mut forgotten = BTreeMap::new();
            for step in &moves {
                match step {
                    Move::Read(rows, steps, bound) => {
                        now += steps;
                        let (_, times) = read(&mut cache, rows, now, *bound);
                        for (row, time) in rows.iter().zip(times) {
                            prop_assert!(time + bound >= now, "{}", name);
                            prop_assert!(time >= *forgotten.get(row).unwrap_or(&0), "{}", name);
                        }
                    }
                    Move::Write(rows, ago) => {
                        cache.write(rows, &times(rows, now - ago), now - ago).unwrap();
                    }
                    Move::Forget(rows) => {
                        now += 6;
                        cache.forget(rows);
                        forgotten.extend(rows.iter().map(|row| (*row, now - 6)));
                    }
                }
            }
        }
    }

    #[test]
    fn a_large_cache_fetches_only_rows_that_are_too_old(moves in moves()) {
        for (name, mut cache) in caches(ROWS as usize).into_iter().take(3) {
            let mut now = 100;
            let mut known: BTreeMap<u64, u64> = BTreeMap::new();
            let mut kept = BTreeSet::new();
            for step in &moves {
                match step {
                    Move::Read(rows, steps, bound) => {
                        now += steps;
                        let old = |row: &&u64| known.get(*row).is_none_or(|time| time + bound < now);
                        let expected: BTreeSet<u64> = rows.iter().filter(old).copied().collect();
                        let (missing, times) = read(&mut cache, rows, now, *bound);
                        prop_assert_eq!(missing, expected.iter().copied().collect::<Vec<_>>(), "{}", name);
                        known.extend(expected.iter().map(|row| (*row, now)));
                        kept.extend(expected);
                        let expected: Vec<u64> = rows.iter().map(|row| known[row]).collect();
                        prop_assert_eq!(times, expected);
                    }
                    Move::Write(rows, ago) => {
                        let time = now - ago;
                        cache.write(rows, &times(rows, time), time).unwrap();
                        for row in rows.iter().filter(|row| kept.contains(*row)) {
                            known.entry(*row).and_modify(|at| *at = time.max(*at)).or_insert(time);
                        }
                    }
                    Move::Forget(rows) => {
                        cache.forget(rows);
                        known.retain(|row, _| !rows.contains(row));
                    }
                }
            }
        }
    }
}

#[test]
fn a_late_answer_does_not_replace_a_newer_one() {
    let mut cache = Cache::new(1, 4 * (1 + SLOT_BYTES as u64), Lru::new);
    let (mut early, mut late, mut out) = (Lookup::new(), Lookup::new(), [0]);
    cache.begin(&[7], 0, &mut early, &mut out).unwrap();
    cache.begin(&[7], 0, &mut late, &mut out).unwrap();
    cache.finish(&mut late, &[5], 5, &mut out).unwrap();
    cache.finish(&mut early, &[3], 3, &mut out).unwrap();
    assert_eq!(out, [3]);
    cache.begin(&[7], 5, &mut early, &mut out).unwrap();
    assert_eq!((early.missing(), out), (&[][..], [5]));
}

#[test]
fn stale_rows_are_counted_once() {
    let (_, mut cache) = caches(4).remove(0);
    read(&mut cache, &[1, 2, 1], 10, 0);
    read(&mut cache, &[1, 1, 3], 11, 0);
    let hits = cache.hits();
    assert_eq!((hits.hits, hits.misses, hits.stale, hits.evictions), (0, 4, 1, 0));
    assert_eq!(cache.slots(), bytes(4) as usize / (WIDTH + SLOT_BYTES));
}
