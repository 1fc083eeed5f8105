//! Batches with their rows, in buffers that are reused.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use thinwire_graph::{Position, Sample};

/// Mini-batch: a sample and the feature rows of its vertices.
///
/// Its buffers return to the loader when it is dropped.
#[derive(Debug)]
pub struct Batch {
    position: Position,
    buffers: Buffers,
    rows: Vec<u8>,
    /// Whether the batch is counted in [`Room::taken`].
    has_rows: bool,
    pool: Arc<Pool>,
}

/// Sample of a batch and the row numbers of its vertices.
#[derive(Debug, Default)]
pub struct Buffers {
    pub sample: Sample,
    pub ids: Vec<u64>,
}

/// Free buffers. A batch gets memory for its rows only when they are read.
#[derive(Debug)]
pub struct Pool {
    buffers: Mutex<Vec<Buffers>>,
    rows: Mutex<Vec<Vec<u8>>>,
    most: usize,
    room: Mutex<Room>,
    changed: Condvar,
}

/// Room for batches that have rows.
#[derive(Debug, Default)]
struct Room {
    /// Number of batches that have rows and have not been dropped.
    taken: usize,
    /// Number of the batch that the caller waits for.
    awaited: Option<u64>,
    closed: bool,
}

impl Batch {
    pub(crate) fn new(position: Position, pool: Arc<Pool>) -> Batch {
        let buffers = lock(&pool.buffers).pop().unwrap_or_default();
        Batch { position, buffers, rows: Vec::new(), has_rows: false, pool }
    }

    pub(crate) fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Returns row numbers, and memory for their rows of `width` bytes.
    pub(crate) fn rows_to_read(&mut self, width: usize) -> (&[u64], &mut [u8]) {
        if !std::mem::replace(&mut self.has_rows, true) {
            self.rows = lock(&self.pool.rows).pop().unwrap_or_default();
            lock(&self.pool.room).taken += 1;
        }
        self.rows.resize(self.buffers.ids.len() * width, 0);
        (&self.buffers.ids, &mut self.rows)
    }

    /// Returns the position of the batch in the training. A training that resumes after this batch starts at
    /// the next position ([`Batches::after`](thinwire_graph::Batches::after)).
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
        if self.has_rows {
            give(&self.pool.rows, std::mem::take(&mut self.rows), self.pool.most);
            self.pool.change(|room| room.taken -= 1);
        }
    }
}

impl Pool {
    /// Creates a pool that keeps at most `most` buffers of each kind.
    pub fn new(most: usize) -> Pool {
        let (buffers, rows, room) = (Mutex::default(), Mutex::default(), Mutex::default());
        Pool { buffers, rows, most, room, changed: Condvar::new() }
    }

    /// Waits until batch `number` may have rows: if fewer than `most` batches have rows, if the caller
    /// waits for this batch (it may keep all others), or if the pool is closed.
    pub fn wait_for_room(&self, number: u64, most: usize) {
        let is_full =
            |room: &mut Room| room.taken >= most && room.awaited != Some(number) && !room.closed;
        let room = self.changed.wait_while(lock(&self.room), is_full);
        drop(room.unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets the number of the batch that the caller waits for.
    pub fn set_awaited(&self, awaited: Option<u64>) {
        self.change(|room| room.awaited = awaited);
    }

    /// Ends every wait.
    pub fn close(&self) {
        self.change(|room| room.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Room)) {
        change(&mut lock(&self.room));
        self.changed.notify_all();
    }
}

fn give<T>(free: &Mutex<Vec<T>>, value: T, most: usize) {
    let mut free = lock(free);
    if free.len() < most {
        free.push(value);
    }
}

/// Locks a value. No code that can panic runs under these locks.
pub(crate) fn lock<T>(values: &Mutex<T>) -> MutexGuard<'_, T> {
    values.lock().unwrap_or_else(PoisonError::into_inner)
}
