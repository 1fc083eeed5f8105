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
                cache.tell(&batch.buffers().ids);
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

fn gather(shared: &Shared, cache: &mut RowCache, mut batch: Batch) -> Result<Batch, Error> {
    let position = batch.position();
    let buffers = batch.buffers();
    let hits = cache
        .read(&shared.features, &buffers.ids, &mut buffers.rows)
        .map_err(|error| Error::batch(Kind::Rows, position, error))?;
    shared.set_hits(hits);
    Ok(batch)
}
