//! Demand: rows of other parts that a rank's batches will request, counted before the training.
//!
//! Samples are a function of seed, pass and step. So all batches of a training can be sampled in advance
//! and passed through the loader's cache, without reading rows. Law: the result equals the number of
//! requests of a loader in the same passes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thinwire_graph::partition::Parts;
use thinwire_graph::{Adjacency, Batches, Position, Sample, Sampler, Sampling};
use thinwire_rows::{self as rows, SLOT_BYTES, Source};

use crate::cache::RowCache;
use crate::error::{Error, Kind};
use crate::features::{Features, Policy};

/// Bytes of a request for a row, in addition to the row itself.
pub const REQUEST_BYTES: usize = size_of::<u64>();

/// Options for sampling in advance.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Options of samples.
    pub sampling: Sampling,
    /// Number of passes, starting with the first.
    pub passes: u64,
    /// Number of rows that fit in the foreseeing cache of a rank; 0 without a cache.
    pub cached: u64,
    /// Number of batches that the cache knows beyond the current one.
    pub ahead: u32,
}

impl Demand {
    /// Counts the rows of other parts that a rank requests; its own part has the rank's number.
    ///
    /// # Errors
    /// If a batch cannot be sampled.
    ///
    /// # Panics
    /// If there is no such rank, or `parts` belong to another graph.
    pub fn rows(
        &self,
        graph: &Adjacency,
        batches: &Batches,
        parts: &Arc<Parts>,
        rank: u32,
    ) -> Result<u64, Error> {
        let count = Arc::new(Count { parts: parts.clone(), rank, remote: AtomicU64::new(0) });
        let features = match self.cached {
            0 => Features::direct(count.clone()),
            // As many slots as with the rows themselves, for rows of a byte.
            rows => Features::cached(
                count.clone(),
                rows.saturating_mul(1 + SLOT_BYTES as u64),
                Policy::Foreseen,
            ),
        };
        let mut cache = RowCache::new(&features, u64::from(graph.vertices()), self.ahead);
        let mut samples = Samples::new(graph, batches, rank, &self.sampling)?;
        let (mut waiting, mut values) = (VecDeque::new(), Vec::new());
        for _ in 0..self.passes * u64::from(batches.steps()) {
            while waiting.len() <= cache.ahead() {
                let (position, ids) = samples.next()?;
                cache.tell(&features, &ids);
                waiting.push_back((position, ids));
            }
            let (position, ids) = waiting.pop_front().expect("a batch waits");
            values.resize(ids.len(), 0);
            let read = match self.cached {
                0 => count.read(&ids, &mut values),
                _ => cache.read(&features, &ids, &mut values).map(drop),
            };
            read.map_err(|error| Error::batch(Kind::Rows, position, error))?;
        }
        Ok(count.remote.load(Ordering::Relaxed))
    }
}

/// Rows of one byte, which are only counted.
struct Count {
    parts: Arc<Parts>,
    rank: u32,
    remote: AtomicU64,
}

impl Source for Count {
    fn width(&self) -> usize {
        1
    }

    fn read(&self, rows: &[u64], _: &mut [u8]) -> Result<(), rows::Error> {
        let is_remote = |row: &&u64| self.parts.of(**row as u32) != self.rank;
        let remote = rows.iter().filter(is_remote).count() as u64;
        self.remote.fetch_add(remote, Ordering::Relaxed);
        Ok(())
    }

    fn own(&self, row: u64) -> Option<&[u8]> {
        (self.parts.of(row as u32) == self.rank).then_some(&[0])
    }
}

/// Vertices of the batches of a rank, starting with the first batch.
struct Samples<'a> {
    graph: &'a Adjacency,
    batches: &'a Batches,
    rank: u32,
    sampler: Sampler,
    sample: Sample,
    pass: thinwire_graph::Pass,
    position: Position,
}

impl<'a> Samples<'a> {
    fn new(
        graph: &'a Adjacency,
        batches: &'a Batches,
        rank: u32,
        sampling: &Sampling,
    ) -> Result<Samples<'a>, Error> {
        let sampler = Sampler::new(graph, sampling.clone());
        let sampler = sampler.map_err(|error| Error::options(error.to_string()))?;
        let (pass, position) = (batches.shuffle(0), Position::default());
        Ok(Samples { graph, batches, rank, sampler, sample: Sample::new(), pass, position })
    }

    fn next(&mut self) -> Result<(Position, Vec<u64>), Error> {
        let position = self.position;
        let seeds = self.pass.seeds(position.step, self.rank);
        let key = self.batches.key(position, self.rank);
        self.sampler
            .sample(self.graph, seeds, key, &mut self.sample)
            .map_err(|error| Error::batch(Kind::Sampling, position, error))?;
        self.position = self.batches.after(position);
        if self.position.pass != position.pass {
            self.pass = self.batches.shuffle(self.position.pass);
        }
        Ok((position, self.sample.vertices.iter().map(|vertex| u64::from(*vertex)).collect()))
    }
}
