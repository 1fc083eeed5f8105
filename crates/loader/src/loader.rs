//! Loader: starts the threads, passes on their batches, and ends them.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, available_parallelism};

use thinwire_graph::{Adjacency, Batches, Pass, Position, Sampler, Sampling};
use thinwire_rows::Hits;

use crate::batch::{Batch, Pool, lock};
use crate::cache::RowCache;
use crate::error::{Error, Kind};
use crate::features::Features;
use crate::queue::{Closing, Queue};

/// Number of batches with rows that wait for the training.
const LOADED: usize = 2;

/// Options of a loader.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Options of samples.
    pub sampling: Sampling,
    /// Rank whose batches are loaded.
    pub rank: u32,
    /// Position of the first batch.
    pub start: Position,
    /// Number of sampling threads, at least 1.
    pub threads: usize,
    /// Number of batches that a foreseeing cache knows beyond the current one. Their samples are in memory.
    pub ahead: u32,
}

/// Endless source of batches in the order of their positions.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Number of the next batch.
    number: u64,
    /// Whether a batch could not be loaded.
    failed: bool,
}

/// State that the threads of a loader share.
#[derive(Debug)]
struct Shared {
    graph: Arc<Adjacency>,
    batches: Batches,
    features: Features,
    rank: u32,
    pool: Arc<Pool>,
    /// Number of sampling threads.
    threads: usize,
    sampled: Queue<Result<Batch, Error>>,
    loaded: Queue<Result<Batch, Error>>,
    start: Position,
    hits: Mutex<Hits>,
}

impl Options {
    /// Creates options for a rank, starting with the first batch of the first pass, with one sampling thread
    /// per core, and 32 batches ahead.
    pub fn new(sampling: Sampling, rank: u32) -> Options {
        let threads = available_parallelism().map_or(1, usize::from);
        Options { sampling, rank, start: Position::default(), threads, ahead: 32 }
    }
}

impl Loader {
    /// Starts the threads.
    ///
    /// # Errors
    /// If there is no such rank or step, weights do not match the graph, or a thread cannot be started.
    pub fn start(
        graph: Arc<Adjacency>,
        batches: Batches,
        features: Features,
        options: Options,
    ) -> Result<Loader, Error> {
        let threads = options.threads.max(1);
        check(&batches, &options)?;
        let invalid = |error: thinwire_graph::Error| Error::options(error.to_string());
        let sampler = Sampler::new(&graph, options.sampling).map_err(invalid)?;
        let cache = RowCache::new(&features, u64::from(graph.vertices()), options.ahead);
        let is_cached = features.cache.is_some();
        let in_flight = 2 * threads + LOADED + options.ahead as usize;
        let shared = Arc::new(Shared {
            graph,
            batches,
            features,
            rank: options.rank,
            pool: Arc::new(Pool::new(in_flight)),
            threads,
            sampled: Queue::new(threads),
            loaded: Queue::new(LOADED),
            start: options.start,
            hits: Mutex::default(),
        });
        // From here on, dropping the loader ends the threads that were started.
        let mut loader =
            Loader { shared: shared.clone(), threads: Vec::new(), number: 0, failed: false };
        if is_cached {
            let gathering = shared.clone();
            loader.spawn("gather", move || gather_batches(&gathering, cache))?;
        }
        let next = Arc::new(AtomicU64::new(0));
        for _ in 0..threads {
            let (shared, next, sampler) = (shared.clone(), next.clone(), sampler.clone());
            loader.spawn("sample", move || sample_batches(&shared, &next, sampler))?;
        }
        Ok(loader)
    }

    /// Returns the next batch, once it is loaded.
    ///
    /// # Errors
    /// If the batch cannot be sampled or its rows cannot be read. The loader has then ended.
    #[allow(clippy::should_implement_trait, reason = "batches have no end, and may fail")]
    pub fn next(&mut self) -> Result<Batch, Error> {
        if let Some(batch) = self.try_next()? {
            return Ok(batch);
        }
        let batch = if self.failed { None } else { self.ready().take() };
        self.given(batch.unwrap_or_else(|| {
            // A thread ends early where a changed file has led it to a vertex that does not exist.
            self.shared.ensure_unchanged(self.shared.position(self.number))?;
            Err(Error::ended())
        }))
    }

    /// Returns the next batch if it is loaded, without waiting. Otherwise, marks the batch as awaited:
    /// it may then have rows even if the caller keeps all other batches.
    ///
    /// # Errors
    /// As [`Loader::next`].
    pub fn try_next(&mut self) -> Result<Option<Batch>, Error> {
        let batch = if self.failed { None } else { self.ready().try_take() };
        if batch.is_none() {
            self.shared.pool.set_awaited(Some(self.number));
        }
        batch.map(|batch| self.given(batch)).transpose()
    }

    /// Returns the queue of batches that have their rows. Without a cache, this is the queue of the
    /// sampling threads, which have also read the rows.
    fn ready(&self) -> &Queue<Result<Batch, Error>> {
        let is_cached = self.shared.features.cache.is_some();
        if is_cached { &self.shared.loaded } else { &self.shared.sampled }
    }

    /// Counts a batch that the caller receives, and ends the loader if the batch could not be loaded.
    fn given(&mut self, batch: Result<Batch, Error>) -> Result<Batch, Error> {
        self.shared.pool.set_awaited(None);
        self.number += 1;
        batch.inspect_err(|_| {
            self.failed = true;
            self.shared.close();
        })
    }

    /// Returns the counters of the cache, for the batches that are loaded; zeros without a cache.
    pub fn hits(&self) -> Hits {
        *lock(&self.shared.hits)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let failed = |error: io::Error| Error::options(format!("cannot start a thread: {error}"));
        self.threads.push(Builder::new().name(name.to_owned()).spawn(work).map_err(failed)?);
        Ok(())
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            // A panic has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Returns the position of the batch with this number, counted since the start.
    fn position(&self, number: u64) -> Position {
        let steps = u64::from(self.batches.steps());
        let number = u64::from(self.start.step) + number;
        Position { pass: self.start.pass + number / steps, step: (number % steps) as u32 }
    }

    /// Checks that the files of the graph and of its rows were not changed.
    fn ensure_unchanged(&self, position: Position) -> Result<(), Error> {
        self.graph.ensure_unchanged().map_err(|error| Error::batch(Kind::Sampling, position, error))
    }

    /// Makes all threads end.
    fn close(&self) {
        self.sampled.close();
        self.loaded.close();
        self.pool.close();
    }

    /// Publishes the counters of the cache.
    fn set_hits(&self, hits: Hits) {
        *lock(&self.hits) = hits;
    }
}

fn check(batches: &Batches, options: &Options) -> Result<(), Error> {
    let (rank, ranks) = (options.rank, batches.ranks());
    if rank >= ranks {
        return Err(Error::options(format!("rank {rank}, expected ranks of 0..{ranks}")));
    }
    let (step, steps) = (options.start.step, batches.steps());
    if step >= steps {
        return Err(Error::options(format!("start at step {step}, expected steps of 0..{steps}")));
    }
    Ok(())
}

/// Runs a sampling thread until the queue is closed. It takes the next position, samples its batch and,
/// without a cache, reads the rows of the batch.
fn sample_batches(shared: &Shared, next: &AtomicU64, mut sampler: Sampler) {
    let _closing = Closing(&shared.sampled, &shared.loaded);
    let mut pass = None;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let batch = sample_batch(shared, number, &mut pass, &mut sampler);
        if !shared.sampled.put(number, batch) {
            return;
        }
    }
}

fn sample_batch(
    shared: &Shared,
    number: u64,
    pass: &mut Option<(u64, Pass)>,
    sampler: &mut Sampler,
) -> Result<Batch, Error> {
    let position = shared.position(number);
    if pass.as_ref().is_none_or(|(number, _)| *number != position.pass) {
        *pass = None;
    }
    let shuffle = || (position.pass, shared.batches.shuffle(position.pass));
    let (_, pass) = pass.get_or_insert_with(shuffle);
    let seeds = pass.seeds(position.step, shared.rank);
    let key = shared.batches.key(position, shared.rank);
    shared.ensure_unchanged(position)?;
    let mut batch = Batch::new(position, shared.pool.clone());
    let buffers = batch.buffers();
    sampler
        .sample(&shared.graph, seeds, key, &mut buffers.sample)
        .map_err(|error| Error::batch(Kind::Sampling, position, error))?;
    // What was written to the file while it was sampled from may be in the sample.
    shared.ensure_unchanged(position)?;
    let features = &shared.features;
    features.number(&buffers.sample.vertices, &mut buffers.ids);
    if features.cache.is_none() {
        // One for each thread, and the one that the caller has.
        shared.pool.wait_for_room(number, shared.threads + 1);
        let (ids, rows) = batch.rows_to_read(features.source.width());
        let read = features.source.read(ids, rows);
        shared.ensure_unchanged(position)?;
        read.map_err(|error| Error::batch(Kind::Rows, position, error))?;
    }
    Ok(batch)
}

/// Runs the gathering thread until a queue is closed or a batch has failed. It passes batches through the
/// cache of rows, in order.
fn gather_batches(shared: &Shared, mut cache: RowCache) {
    let _closing = Closing(&shared.sampled, &shared.loaded);
    let mut waiting = VecDeque::new();
    for number in 0.. {
        while waiting.len() <= cache.ahead() {
            let Some(mut batch) = shared.sampled.take() else { return };
            if let Ok(batch) = &mut batch {
                cache.tell(&shared.features, &batch.buffers().ids);
            }
            waiting.push_back(batch);
        }
        let batch = waiting.pop_front().expect("a batch waits");
        let batch = batch.and_then(|batch| gather(shared, &mut cache, batch));
        let failed = batch.is_err();
        if !shared.loaded.put(number, batch) || failed {
            return;
        }
    }
}

/// Reads the rows of a batch through the cache.
fn gather(shared: &Shared, cache: &mut RowCache, mut batch: Batch) -> Result<Batch, Error> {
    let (position, features) = (batch.position(), &shared.features);
    let (ids, rows) = batch.rows_to_read(features.source.width());
    let read = cache.read(features, ids, rows);
    shared.ensure_unchanged(position)?;
    shared.set_hits(read.map_err(|error| Error::batch(Kind::Rows, position, error))?);
    Ok(batch)
}
