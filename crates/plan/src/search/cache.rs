//! What no link touches, kept between plans: for every mesh the outlines of blocks, and for all of
//! them what tensors go through from one layout to another.
//!
//! Law: a plan made with what is kept is the plan made without.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use super::rule::Rule;
use crate::cluster::Device;
use crate::cost::{Costs, Keeping, Passages, Precision};
use crate::stage::Outline;

/// What is kept of one model, by mesh.
#[derive(Debug, Default)]
pub(super) struct ModelCache {
    on: Mutex<HashMap<Vec<usize>, Arc<MeshCache>>>,
    passages: Arc<Cache<Vec<u64>, Passages>>,
}

/// What is kept of one mesh of such devices.
#[derive(Debug)]
pub(super) struct MeshCache {
    device: Device,
    precision: Precision,
    keeping: Keeping,
    /// Of the blocks of a class under a rule.
    pub outlines: Cache<(Rule, usize), Outline>,
    /// Between two lists of layouts, on all meshes.
    pub passages: Arc<Cache<Vec<u64>, Passages>>,
}

/// What is worked out once for each key.
#[derive(Debug)]
pub(super) struct Cache<Key, Value>(Mutex<HashMap<Key, Arc<Value>>>);

impl ModelCache {
    /// Nothing yet, but what tensors go through is kept together with another model's.
    pub fn beside(other: &ModelCache) -> ModelCache {
        ModelCache { passages: Arc::clone(&other.passages), ..ModelCache::default() }
    }

    /// What is kept of a mesh. Of several kinds of devices one is remembered.
    pub fn on(&self, costs: &Costs<'_>) -> Arc<MeshCache> {
        let mut all = self.on.lock().expect("no thread has panicked");
        if let Some(known) = all.get(&costs.mesh)
            && known.device == costs.device
            && known.precision == costs.precision
            && known.keeping == costs.keeping
        {
            return Arc::clone(known);
        }
        let on_mesh = Arc::new(MeshCache {
            device: costs.device.clone(),
            precision: costs.precision,
            keeping: costs.keeping,
            outlines: Cache::default(),
            passages: Arc::clone(&self.passages),
        });
        all.insert(costs.mesh.clone(), Arc::clone(&on_mesh));
        on_mesh
    }
}

impl<Key: Eq + Hash, Value> Cache<Key, Value> {
    /// What is known by this key, or what `work_out` says; others may ask meanwhile.
    ///
    /// # Errors
    /// Those of `work_out`.
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
