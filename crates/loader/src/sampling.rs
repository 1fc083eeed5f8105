//! Sampling threads: each takes the next position, samples its batch and, without a cache, reads its rows.

use std::sync::atomic::{AtomicU64, Ordering};

use thinwire_graph::{Pass, Sampler};

use crate::batch::Batch;
use crate::error::{Error, Kind};
use crate::loader::Shared;
use crate::queue::Closing;

/// Samples batches until the queue is closed.
pub fn run(shared: &Shared, next: &AtomicU64, mut sampler: Sampler) {
    let _closing = Closing(&shared.sampled, &shared.loaded);
    let mut pass = None;
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let batch = load(shared, number, &mut pass, &mut sampler);
        if !shared.sampled.put(number, batch) {
            return;
        }
    }
}

fn load(
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
    let features = &shared.features;
    features.number(&buffers.sample.vertices, &mut buffers.ids);
    if features.cache.is_none() {
        // One for each thread, and the one that the caller has.
        shared.pool.wait_for_room(number, shared.threads + 1);
        let (ids, rows) = batch.rows_to_read(features.source.width());
        let read = features.source.read(ids, rows);
        read.map_err(|error| Error::batch(Kind::Rows, position, error))?;
    }
    // What was written to the file while it was sampled from may be in the sample.
    shared.ensure_unchanged(position)?;
    Ok(batch)
}
