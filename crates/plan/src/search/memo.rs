//! What no link touches, kept between plans: for every mesh the strategies of nodes and what they
//! cost by themselves, and what tensors go through from one layout to another.
//!
//! Law: a plan made with what is kept is the plan made without.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use thinwire_model::{NodeId, Strategy};

use super::rule::Rule;
use crate::cluster::Device;
use crate::cost::{Cost, Costs, Keeping, Passages, Precision};

/// What is kept of one model, by mesh.
#[derive(Debug, Default)]
pub(super) struct Memo(Mutex<HashMap<Vec<usize>, Arc<OnMesh>>>);

/// What is kept of one mesh of such devices.
#[derive(Debug)]
pub(super) struct OnMesh {
    device: Device,
    precision: Precision,
    keeping: Keeping,
    passages: Mutex<HashMap<Vec<u64>, Arc<Passages>>>,
    options: Mutex<HashMap<(Rule, NodeId), Options>>,
}

/// Strategies of a node, and what each costs without parameters and what travels.
pub(super) type Options = Arc<(Vec<Strategy>, Vec<Cost>)>;

impl Memo {
    /// What is kept of a mesh. Of several kinds of devices one is remembered.
    pub fn on(&self, costs: &Costs<'_>) -> Arc<OnMesh> {
        let mut all = self.0.lock().expect("no thread has panicked");
        if let Some(known) = all.get(&costs.mesh)
            && known.device == costs.device
            && known.precision == costs.precision
            && known.keeping == costs.keeping
        {
            return Arc::clone(known);
        }
        let on_mesh = Arc::new(OnMesh {
            device: costs.device.clone(),
            precision: costs.precision,
            keeping: costs.keeping,
            passages: Mutex::default(),
            options: Mutex::default(),
        });
        all.insert(costs.mesh.clone(), Arc::clone(&on_mesh));
        on_mesh
    }
}

impl OnMesh {
    /// What is known by this key, or what `work_out` says.
    pub fn passages(&self, key: Vec<u64>, work_out: impl FnOnce() -> Passages) -> Arc<Passages> {
        let mut known = self.passages.lock().expect("no thread has panicked");
        Arc::clone(known.entry(key).or_insert_with(|| Arc::new(work_out())))
    }

    /// The options of a node under a rule: those that are known, or what `work_out` says.
    pub fn options(&self, rule: Rule, id: NodeId, work_out: impl FnOnce() -> Options) -> Options {
        let mut known = self.options.lock().expect("no thread has panicked");
        Arc::clone(known.entry((rule, id)).or_insert_with(work_out))
    }
}
