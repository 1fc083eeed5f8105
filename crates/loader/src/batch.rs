//! Batches with their rows, in buffers that are used again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thinwire_graph::{Position, Sample};

/// Mini-batch: a sample and the feature rows of its vertices.
///
/// Its buffers return to the loader when it is dropped.
#[derive(Debug)]
pub struct Batch {
    position: Position,
    buffers: Buffers,
    rows: Vec<u8>,
    pool: Arc<Pool>,
}

/// Sample of a batch and the row numbers of its vertices.
#[derive(Debug, Default)]
pub struct Buffers {
    pub sample: Sample,
    pub ids: Vec<u64>,
}

/// Buffers that are free. Batches that wait for their rows have no memory for them.
#[derive(Debug)]
pub struct Pool {
    buffers: Mutex<Vec<Buffers>>,
    rows: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

impl Batch {
    pub(crate) fn new(position: Position, pool: Arc<Pool>) -> Batch {
        let buffers = lock(&pool.buffers).pop().unwrap_or_default();
        Batch { position, buffers, rows: Vec::new(), pool }
    }

    pub(crate) fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Returns row numbers, and memory for their rows of `width` bytes.
    pub(crate) fn rows_to_read(&mut self, width: usize) -> (&[u64], &mut [u8]) {
        if self.rows.capacity() == 0 {
            self.rows = lock(&self.pool.rows).pop().unwrap_or_default();
        }
        self.rows.resize(self.buffers.ids.len() * width, 0);
        (&self.buffers.ids, &mut self.rows)
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
        &self.rows
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        give(&self.pool.buffers, std::mem::take(&mut self.buffers), self.pool.most);
        if self.rows.capacity() > 0 {
            give(&self.pool.rows, std::mem::take(&mut self.rows), self.pool.most);
        }
    }
}

impl Pool {
    /// Creates a pool that keeps at most `most` buffers of each sort.
    pub fn new(most: usize) -> Pool {
        Pool { buffers: Mutex::default(), rows: Mutex::default(), most }
    }
}

fn give<T>(free: &Mutex<Vec<T>>, value: T, most: usize) {
    let mut free = lock(free);
    if free.len() < most {
        free.push(value);
    }
}

fn lock<T>(values: &Mutex<T>) -> MutexGuard<'_, T> {
    values.lock().unwrap_or_else(PoisonError::into_inner)
}
