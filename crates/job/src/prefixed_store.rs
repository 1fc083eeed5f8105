//! A part of a store: one of several links between the same ranks.

use std::time::Duration;

use thinwire_link::store::Store;

/// A store whose keys all begin with a name, so that several users of one store do not meet.
pub struct PrefixedStore<'a> {
    store: &'a dyn Store,
    name: String,
}

impl PrefixedStore<'_> {
    /// The part `name` of `store`: words of `a-z 0-9 . _ -` between slashes.
    pub fn new(store: &dyn Store, name: impl Into<String>) -> PrefixedStore<'_> {
        PrefixedStore { store, name: name.into() }
    }
}

impl Store for PrefixedStore<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), thinwire_link::Error> {
        self.store.set(&format!("{}/{key}", self.name), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, thinwire_link::Error> {
        self.store.get(&format!("{}/{key}", self.name), timeout)
    }
}
