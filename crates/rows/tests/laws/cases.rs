//! Traces, sources and caches of all policies.

use proptest::prelude::*;
use thinwire_rows::{Cache, Error, Foreseen, Hits, Lookup, Lru, Policy, SLOT_BYTES, Sieve, Source};

/// Rows of the source.
pub const ROWS: u64 = 24;

/// Bytes of a row.
pub const WIDTH: usize = 5;

/// Cache of any policy.
pub type AnyCache = Cache<Box<dyn Policy>>;

/// Source whose rows have a version each.
pub struct Versions(pub Vec<u32>);

impl Versions {
    pub fn new() -> Versions {
        Versions(vec![0; ROWS as usize])
    }

    pub fn value(&self, row: u64) -> [u8; WIDTH] {
        let mut value = [row as u8; WIDTH];
        value[1..].copy_from_slice(&self.0[row as usize].to_le_bytes());
        value
    }

    pub fn values(&self, rows: &[u64]) -> Vec<u8> {
        rows.iter().flat_map(|row| self.value(*row)).collect()
    }
}

impl Source for Versions {
    fn width(&self) -> usize {
        WIDTH
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        assert!(rows.is_sorted_by(|row, next| row < next), "ascending, each once");
        out.copy_from_slice(&self.values(rows));
        Ok(())
    }
}

/// Returns batches of ids with repetitions.
pub fn batches() -> impl Strategy<Value = Vec<Vec<u64>>> {
    // Few rows fit in a cache and are used again and again; of many, small ids come more often.
    prop_oneof![1..6_u64, 6..=ROWS].prop_flat_map(|rows| {
        let id = (0..rows, 0..rows).prop_map(|(a, b)| a.min(b));
        prop::collection::vec(prop::collection::vec(id, 0..14), 0..30)
    })
}

/// Returns the bytes that give a cache this many slots.
pub fn bytes(slots: usize) -> u64 {
    (slots * (WIDTH + SLOT_BYTES)) as u64
}

/// Returns an empty cache of each policy.
pub fn caches(slots: usize) -> Vec<(&'static str, AnyCache)> {
    let cache = |policy: fn(u32) -> Box<dyn Policy>| Cache::new(WIDTH, bytes(slots), policy);
    vec![
        ("lru", cache(|slots| Box::new(Lru::new(slots)))),
        ("sieve", cache(|slots| Box::new(Sieve::new(slots)))),
        ("foreseen, untold", cache(|slots| Box::new(Foreseen::new(slots, 0)))),
    ]
}

/// Looks up all batches, and tells `foreseen` the next `ahead` of them before each.
pub fn foreseen_hits(batches: &[Vec<u64>], slots: usize, ahead: u32) -> Hits {
    let mut cache = Cache::new(WIDTH, bytes(slots), |slots| Foreseen::new(slots, ahead));
    let mut untold = batches.iter();
    for batch in batches {
        while cache.policy_mut().batches_ahead() < ahead as usize {
            let Some(next) = untold.next() else { break };
            assert!(cache.policy_mut().tell(next));
        }
        look_up(&mut cache, &Versions::new(), batch);
    }
    cache.hits()
}

/// Looks one batch up and checks the answer; returns the rows that were missing.
pub fn look_up<P: Policy>(cache: &mut Cache<P>, source: &Versions, ids: &[u64]) -> Vec<u64> {
    let (mut lookup, mut out) = (Lookup::new(), vec![0xEE; ids.len() * WIDTH]);
    cache.begin(ids, 0, &mut lookup, &mut out).unwrap();
    let missing = lookup.missing().to_vec();
    cache.finish(&mut lookup, &source.values(&missing), 0, &mut out).unwrap();
    assert_eq!(out, source.values(ids));
    missing
}
