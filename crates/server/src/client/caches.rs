//! Caches of rows in a worker.
//!
//! The time of a cached row is the number of pushes that the worker had made when it requested the row. The
//! row is used until the worker has made more than [`Caching::staleness`] further pushes. Laws: the
//! servers could have answered with the same value at most `staleness` of the worker's steps ago; a
//! value contains all of the worker's own pushes; memory is bounded by [`Caching::bytes_max`].
//!
//! The second law holds because a push removes its rows from the cache when it begins, and an answer to a
//! request from before a push is not cached after it.

use std::collections::BTreeMap;

use thinwire_rows::{Cache, Hits, Lookup, Sieve};

use crate::client::Gradient;

/// Largest number of ids in one lookup.
const IDS_MAX: usize = 1 << 31;

/// Settings of a worker's cache for one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Memory limit in bytes, including bookkeeping.
    pub bytes_max: u64,
    /// Number of the worker's own pushes for which a row is used; 0 means until the next push. It adds to the
    /// staleness that the job's consistency allows.
    pub staleness: u64,
}

/// Caches of a worker, by table.
#[derive(Debug, Default)]
pub struct Caches {
    tables: BTreeMap<u32, Table>,
}

#[derive(Debug)]
struct Table {
    /// Bytes of a row.
    row_bytes: usize,
    staleness: u64,
    cache: Cache<Sieve>,
    /// Buffers of a finished batch, for the next one.
    spare: Option<(Lookup, Vec<u8>)>,
}

/// Lookup of one pull in a table's cache.
#[derive(Debug)]
pub struct Batch {
    table: u32,
    lookup: Lookup,
    /// Values of the ids, as far as known.
    values: Vec<u8>,
    /// Number of the worker's pushes when the batch began.
    time: u64,
}

impl Batch {
    /// Returns the rows to request, ascending and unique.
    pub fn missing(&self) -> &[u64] {
        self.lookup.missing()
    }
}

impl Caches {
    /// Adds a cache for a table whose rows have `row_bytes` bytes.
    pub fn add(&mut self, table: u32, row_bytes: usize, caching: Caching) {
        let cache = Cache::new(row_bytes, caching.bytes_max, Sieve::new);
        let staleness = caching.staleness;
        self.tables.insert(table, Table { row_bytes, staleness, cache, spare: None });
    }

    /// Returns the counters of a table's cache, or `None` if the table is not cached.
    pub fn hits(&self, table: u32) -> Option<Hits> {
        self.tables.get(&table).map(|table| table.cache.hits())
    }

    /// Returns the counters of all caches, or `None` if no table is cached.
    pub fn all_hits(&self) -> Option<Hits> {
        let mut sum = Hits::default();
        self.tables.values().for_each(|table| sum += table.cache.hits());
        (!self.tables.is_empty()).then_some(sum)
    }

    /// Looks up ids after `time` pushes; `None` if the table is not cached or there are more than [`IDS_MAX`]
    /// ids.
    pub fn begin(&mut self, number: u32, ids: &[u64], time: u64) -> Option<Batch> {
        let table = self.tables.get_mut(&number).filter(|_| ids.len() <= IDS_MAX)?;
        let (mut lookup, mut values) = table.spare.take().unwrap_or_default();
        values.resize(ids.len() * table.row_bytes, 0);
        let oldest = time.saturating_sub(table.staleness);
        table.cache.begin(ids, oldest, &mut lookup, &mut values).expect("the length was computed");
        Some(Batch { table: number, lookup, values, time })
    }

    /// Finishes a batch with the values of its missing rows, and caches them if no push has begun since.
    /// Calls `take` with the values of all ids.
    pub fn finish(
        &mut self,
        mut batch: Batch,
        fetched: &[u8],
        pushes: u64,
        take: impl FnOnce(&[u8]),
    ) {
        let table = self.tables.get_mut(&batch.table).expect("it gave the batch");
        let Batch { lookup, values, time, .. } = &mut batch;
        let finished = match *time == pushes {
            true => table.cache.finish(lookup, fetched, *time, values),
            false => lookup.finish(fetched, table.row_bytes, values),
        };
        finished.expect("the plan has the lengths");
        take(values);
        table.spare = Some((batch.lookup, batch.values));
    }

    /// Removes the rows of a push.
    pub fn pushed(&mut self, gradients: &[Gradient<'_>]) {
        for gradient in gradients {
            if let Some(table) = self.tables.get_mut(&gradient.table) {
                table.cache.forget(gradient.rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_rows::{Format, SLOT_BYTES};

    use super::*;

    const NONE: [u64; 0] = [];
    const ROWS: u64 = 9;
    /// Two counters: the worker's own pushes, and pushes of others.
    const ROW_BYTES: usize = 8;

    /// Step of a random history of a client and its servers.
    #[derive(Clone, Debug)]
    enum Move {
        Begin(Vec<u64>),
        /// Finishes a pull under way, with the values that the servers had when the pull began, or have
        /// now.
        Finish(usize, bool),
        Push(Vec<u64>),
        /// A push of another worker.
        Other(Vec<u64>),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let rows = || prop::collection::vec(0..ROWS, 0..6);
        let one = prop_oneof![
            3 => rows().prop_map(Move::Begin),
            3 => (any::<usize>(), any::<bool>()).prop_map(|(at, early)| Move::Finish(at, early)),
            1 => rows().prop_map(Move::Push),
            2 => rows().prop_map(Move::Other),
        ];
        prop::collection::vec(one, 0..60)
    }

    /// Counters of every row: the worker's own pushes, and pushes of others.
    type Counts = Vec<[u32; 2]>;

    /// Pull under way, with its ids and the servers' values when it began.
    type Pull = (Batch, Vec<u64>, Counts);

    struct Client {
        caches: Caches,
        staleness: u64,
        now: Counts,
        /// The servers' values at the beginning of each step.
        steps: Vec<Counts>,
        pulls: Vec<Pull>,
    }

    impl Client {
        fn new(staleness: u64, slots: usize) -> Client {
            let mut caches = Caches::default();
            let bytes_max = (slots * (ROW_BYTES + SLOT_BYTES)) as u64;
            caches.add(0, Format::F32.width(2), Caching { bytes_max, staleness });
            let now = vec![[0; 2]; ROWS as usize];
            Client { caches, staleness, steps: vec![now.clone()], now, pulls: Vec::new() }
        }

        fn pushes(&self) -> u64 {
            self.steps.len() as u64 - 1
        }

        fn perform(&mut self, step: &Move) {
            match step {
                Move::Begin(ids) => {
                    let batch = self.caches.begin(0, ids, self.pushes()).unwrap();
                    self.pulls.push((batch, ids.clone(), self.now.clone()));
                }
                Move::Finish(_, _) if self.pulls.is_empty() => {}
                Move::Finish(at, is_early) => {
                    let pull = self.pulls.swap_remove(at % self.pulls.len());
                    self.finish(pull, *is_early);
                }
                Move::Push(rows) => {
                    self.caches.pushed(&[Gradient { table: 0, rows, values: &[] }]);
                    rows.iter().for_each(|row| self.now[*row as usize][0] += 1);
                    self.steps.push(self.now.clone());
                }
                Move::Other(rows) => rows.iter().for_each(|row| self.now[*row as usize][1] += 1),
            }
        }

        fn finish(&mut self, (batch, ids, begun): Pull, is_early: bool) {
            let values = if is_early { &begun } else { &self.now };
            let fetched: Vec<[u32; 2]> =
                batch.missing().iter().map(|row| values[*row as usize]).collect();
            let (time, pushes) = (batch.time, self.pushes());
            let oldest = &self.steps[time.saturating_sub(self.staleness) as usize];
            let fetched = bytemuck::cast_slice(&fetched);
            self.caches.finish(batch, fetched, pushes, |all| {
                let all: Vec<[u32; 2]> = bytemuck::pod_collect_to_vec(all);
                for (row, [own, others]) in ids.iter().zip(all) {
                    let row = *row as usize;
                    assert!(own >= begun[row][0], "row {row} lacks an own push");
                    assert!(others >= oldest[row][1], "row {row} is older than the bound");
                    assert!(own <= self.now[row][0] && others <= self.now[row][1]);
                }
            });
        }
    }

    proptest! {
        #[test]
        fn an_answer_is_one_of_the_last_steps_and_has_all_own_pushes(
            moves in moves(), staleness in 0_u64..4, slots in 0_usize..12
        ) {
            let mut client = Client::new(staleness, slots);
            moves.iter().for_each(|step| client.perform(step));
        }
    }

    #[test]
    fn rows_are_asked_for_when_they_are_too_old_or_pushed() {
        let mut client = Client::new(2, 9);
        let mut asked = |moves: &[Move]| {
            moves.iter().for_each(|step| client.perform(step));
            client.perform(&Move::Begin(vec![1, 2, 3, 2]));
            let missing = client.pulls[0].0.missing().to_vec();
            client.perform(&Move::Finish(0, true));
            missing
        };
        assert_eq!(asked(&[]), [1, 2, 3]);
        assert_eq!(asked(&[]), NONE);
        assert_eq!(asked(&[Move::Push(vec![2])]), [2]);
        assert_eq!(asked(&[Move::Push(vec![])]), NONE);
        assert_eq!(asked(&[Move::Push(vec![])]), [1, 3]);
        assert_eq!(asked(&[Move::Push(vec![7])]), [2]);
        let hits = client.caches.hits(0).unwrap();
        assert_eq!((hits.lookups, hits.hits, hits.misses, hits.stale), (6, 11, 7, 4));
        assert_eq!(client.caches.hits(1), None);
    }
}
