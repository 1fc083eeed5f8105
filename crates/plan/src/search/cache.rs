//! Cache of results that do not depend on links, kept between plans: the outlines of blocks on each
//! mesh, and the collectives between layouts.
//!
//! Law: a plan made with the cache equals the plan made without it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use super::Rule;
use crate::cluster::Device;
use crate::cost::{Costs, Passages, Precision};
use crate::stage::Outline;

/// Cache of one model, by mesh.
#[derive(Debug, Default)]
pub(super) struct ModelCache {
    on: Mutex<HashMap<Vec<usize>, Vec<Arc<MeshCache>>>>,
    passages: Arc<Cache<Vec<u64>, Passages>>,
}

/// Cache of one mesh of equal devices.
#[derive(Debug)]
pub(super) struct MeshCache {
    device: Device,
    precision: Precision,
    /// Outlines of blocks, by rule and class.
    pub outlines: Cache<(Rule, usize), Outline>,
    /// Collectives between two lists of layouts, shared by all meshes.
    pub passages: Arc<Cache<Vec<u64>, Passages>>,
}

/// Values computed once per key.
#[derive(Debug)]
pub(super) struct Cache<Key, Value>(Mutex<HashMap<Key, Arc<Value>>>);

impl ModelCache {
    /// Returns an empty cache that shares the collectives between layouts with another one.
    pub fn beside(other: &ModelCache) -> ModelCache {
        ModelCache { passages: Arc::clone(&other.passages), ..ModelCache::default() }
    }

    /// Returns the cache of a mesh of equal devices.
    pub fn on(&self, costs: &Costs<'_>) -> Arc<MeshCache> {
        let mut all = self.on.lock().expect("no thread has panicked");
        let on_mesh = all.entry(costs.mesh.clone()).or_default();
        let alike =
            |one: &&Arc<MeshCache>| one.device == costs.device && one.precision == costs.precision;
        if let Some(known) = on_mesh.iter().find(alike) {
            return Arc::clone(known);
        }
        let new = Arc::new(MeshCache {
            device: costs.device.clone(),
            precision: costs.precision,
            outlines: Cache::default(),
            passages: Arc::clone(&self.passages),
        });
        on_mesh.push(Arc::clone(&new));
        new
    }
}

impl<Key: Eq + Hash, Value> Cache<Key, Value> {
    /// Returns the value of a key. If it is missing, computes it with `work_out`, without blocking other
    /// threads.
    ///
    /// # Errors
    /// Returns the error of `work_out`.
    pub fn of<Fault>(
        &self,
        key: Key,
        work_out: impl FnOnce() -> Result<Value, Fault>,
    ) -> Result<Arc<Value>, Fault> {
        let known = || self.0.lock().expect("no thread has panicked");
        if let Some(value) = known().get(&key) {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(work_out()?);
        Ok(Arc::clone(known().entry(key).or_insert(value)))
    }
}

impl<Key, Value> Default for Cache<Key, Value> {
    fn default() -> Self {
        Cache(Mutex::default())
    }
}
