//! Gathering thread: passes batches through the cache of rows, in their order.

use std::collections::VecDeque;

use crate::batch::Batch;
use crate::cache::RowCache;
use crate::error::{Error, Kind};
use crate::loader::Shared;
use crate::queue::Closing;

/// Gathers batches until a queue is closed or a batch has failed.
pub fn run(shared: &Shared, mut cache: RowCache) {
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
    shared.set_hits(read.map_err(|error| Error::batch(Kind::Rows, position, error))?);
    shared.ensure_unchanged(position)?;
    Ok(batch)
}
