//! The store of ranks that are threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::Error;
use crate::store::values::Values;
use crate::store::{self, Store};

/// A store in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Mem {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    values: Mutex<Values>,
    changed: Condvar,
}

impl Mem {
    /// Returns an empty store.
    pub fn new() -> Mem {
        Mem::default()
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.shared.values.lock().expect("no holder panics")
    }
}

impl Store for Mem {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.lock().set(key, value)?;
        self.shared.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        store::check(key, &[])?;
        let deadline = Instant::now() + timeout;
        let mut values = self.lock();
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.to_vec());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(store::missing(key, timeout));
            }
            values = self.shared.changed.wait_timeout(values, left).expect("no holder panics").0;
        }
    }
}
