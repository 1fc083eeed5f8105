//! The store of ranks that are threads of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::store::{self, KEY_COST_BYTES, KEYS_MAX, STORE_BYTES_MAX, Store};
use crate::{Error, Kind};

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

/// Keys and their values, within the limits of a store.
#[derive(Debug, Default)]
pub(super) struct Values {
    entries: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

impl Values {
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        store::check(key, value)?;
        let bytes = self.bytes + key.len() + value.len() + KEY_COST_BYTES;
        match self.entries.get(key) {
            Some(found) if found == value => Ok(()),
            Some(found) => Err(store::taken(key, found)),
            None if self.entries.len() >= KEYS_MAX => {
                Err(Error::new(Kind::Limit, format!("the store is full: it has {KEYS_MAX} keys")))
            }
            None if bytes > STORE_BYTES_MAX => {
                let most = format!("at most {STORE_BYTES_MAX}");
                Err(Error::new(Kind::Limit, format!("the store is full: {bytes} bytes, {most}")))
            }
            None => {
                self.entries.insert(key.to_owned(), value.to_vec());
                self.bytes = bytes;
                Ok(())
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }
}

impl Mem {
    /// An empty store.
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
