//! Batches with their rows, in buffers that are used again.

use std::sync::{Arc, Mutex, PoisonError};

use thinwire_graph::{Position, Sample};

/// Mini-batch: a sample and the feature rows of its vertices.
///
/// Its buffers return to the loader when it is dropped.
#[derive(Debug)]
pub struct Batch {
    position: Position,
    /// Is there until the batch is dropped.
    buffers: Buffers,
    pool: Arc<Pool>,
}

/// Buffers of a batch.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Sample of the batch.
    pub sample: Sample,
    /// Row numbers of the vertices.
    pub ids: Vec<u64>,
    /// Rows of the vertices.
    pub rows: Vec<u8>,
}

/// Buffers that are free.
#[derive(Debug)]
pub struct Pool {
    free: Mutex<Vec<Buffers>>,
    most: usize,
}

impl Batch {
    pub(crate) fn new(position: Position, pool: Arc<Pool>) -> Batch {
        Batch { position, buffers: pool.take(), pool }
    }

    pub(crate) fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Returns the place of the batch in the training. A training that resumes after this batch starts at
    /// the position after it ([`Batches::after`](thinwire_graph::Batches::after)).
    pub fn position(&self) -> Position {
        self.position
    }

    /// Returns the sample.
    pub fn sample(&self) -> &Sample {
        &self.buffers.sample
    }

    /// Returns the rows of the sample's vertices, one after the other.
    pub fn rows(&self) -> &[u8] {
        &self.buffers.rows
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.buffers));
    }
}

impl Pool {
    /// Creates a pool that keeps at most `most` buffers.
    pub fn new(most: usize) -> Pool {
        Pool { free: Mutex::new(Vec::new()), most }
    }

    fn take(&self) -> Buffers {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.pop().unwrap_or_default()
    }

    fn give(&self, buffers: Buffers) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.most {
            free.push(buffers);
        }
    }
}
