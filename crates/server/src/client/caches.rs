//! Rows that a worker keeps, so that it does not ask for them in every step.
//!
//! A row is kept with the number of the worker's pushes when it was asked for, which is its time. It is given
//! while the worker has made at most [`Caching::staleness`] pushes since. Laws: an answer is one that the
//! worker could have had from the servers at most so many of its steps before; it contains all of its own
//! pushes; memory is bounded by [`Caching::bytes_max`].
//!
//! The second law: rows of a push are forgotten when it begins, and answers that were asked for before it are
//! not kept after it.

use std::collections::BTreeMap;

use thinwire_rows::{Cache, Format, Hits, Lookup, Sieve};

use crate::client::Gradient;

/// Most ids of one lookup.
const IDS_MAX: usize = 1 << 31;

/// How a worker keeps rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Most bytes of memory, bookkeeping included.
    pub bytes_max: u64,
    /// Number of the worker's own pushes after which a row is asked for anew; with 0 it is kept until the next
    /// push. It comes on top of what the job's consistency allows.
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
    /// Buffers of a batch that is over.
    spare: Option<(Lookup, Vec<u8>)>,
}

/// Ids of a pull of one table on their way through its cache.
#[derive(Debug)]
pub struct Batch {
    table: u32,
    lookup: Lookup,
    /// Values of the ids, as far as they are known.
    values: Vec<u8>,
    /// Number of pushes when it began.
    time: u64,
}

impl Batch {
    /// Returns the rows to ask for, ascending and without repetitions.
    pub fn missing(&self) -> &[u64] {
        self.lookup.missing()
    }
}

impl Caches {
    /// Keeps rows of `width` values of a table from now on.
    pub fn add(&mut self, table: u32, (format, width): (Format, usize), caching: Caching) {
        let row_bytes = format.width(width);
        let cache = Cache::new(row_bytes, caching.bytes_max, Sieve::new);
        let staleness = caching.staleness;
        self.tables.insert(table, Table { row_bytes, staleness, cache, spare: None });
    }

    /// Returns the counts of a table's cache since it was made; none without one.
    pub fn hits(&self, table: u32) -> Option<Hits> {
        self.tables.get(&table).map(|table| table.cache.hits())
    }

    /// Looks ids up after so many pushes; none if nothing is kept of the table.
    pub fn begin(&mut self, number: u32, ids: &[u64], time: u64) -> Option<Batch> {
        let table = self.tables.get_mut(&number).filter(|_| ids.len() <= IDS_MAX)?;
        let (mut lookup, mut values) = table.spare.take().unwrap_or_default();
        values.resize(ids.len() * table.row_bytes, 0);
        let oldest = time.saturating_sub(table.staleness);
        table.cache.begin(ids, oldest, &mut lookup, &mut values).expect("the length was computed");
        Some(Batch { table: number, lookup, values, time })
    }

    /// Ends a batch with the values of its missing rows, which are kept if no push was begun since; calls `take`
    /// with the values of all ids.
    pub fn finish(&mut self, mut batch: Batch, fetched: &[u8], pushes: u64, take: impl FnOnce(&[u8])) {
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

    /// Forgets rows that the worker changes.
    pub fn pushed(&mut self, gradients: &[Gradient<'_>]) {
        for gradient in gradients {
            if let Some(table) = self.tables.get_mut(&gradient.table) {
                table.cache.forget(gradient.rows);
            }
        }
    }
}
