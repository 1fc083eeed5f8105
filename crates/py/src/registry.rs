//! The synchronisers of this process by key, for operators of frameworks that compile their programs.
//!
//! A compiled program cannot hold a Python object: it holds numbers, and may be saved in a file that
//! another process reads. So its operators name a synchroniser by a key, and the synchroniser keeps
//! their errors until Python asks for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use thinwire_device::cuda::Cuda;

use crate::background::Background;
use crate::error::Failure;
use crate::shared::{Shared, Source};

static ENTRIES: Mutex<BTreeMap<i32, Entry>> = Mutex::new(BTreeMap::new());
/// The next key. No key is used twice: a program that outlives its synchroniser must not reach another
/// one.
static NEXT: AtomicI32 = AtomicI32::new(1);

struct Entry {
    shared: Weak<Shared>,
    background: Background,
    device: Option<Cuda>,
}

/// A synchroniser that a key names, the thread on which it waits, and the device that has its gradients.
pub(crate) struct Known {
    pub(crate) shared: Arc<Shared>,
    pub(crate) background: Background,
    pub(crate) device: Option<Cuda>,
}

/// Registers a synchroniser; returns its key.
pub(crate) fn remember(shared: &Arc<Shared>, background: &Background, device: Option<Cuda>) -> i32 {
    let entry = Entry { shared: Arc::downgrade(shared), background: background.clone(), device };
    let key = NEXT.fetch_add(1, Ordering::Relaxed);
    ENTRIES.lock().expect("no holder panics").insert(key, entry);
    key
}

/// Forgets a synchroniser.
pub(crate) fn forget(key: i32) {
    ENTRIES.lock().expect("no holder panics").remove(&key);
}

/// Returns the synchroniser with a key.
pub(crate) fn known(key: i32) -> Result<Known, Failure> {
    let entries = ENTRIES.lock().expect("no holder panics");
    let known = entries.get(&key).and_then(|entry| {
        let shared = entry.shared.upgrade()?;
        let (background, device) = (entry.background.clone(), entry.device.clone());
        Some(Known { shared, background, device })
    });
    known.ok_or_else(|| Failure::invalid(format!("synchroniser {key} is closed or was never made")))
}

/// Starts the exchange of a bucket's gradients, and returns at once.
pub(crate) fn ready(shared: &Shared, bucket: usize, sources: &[Source]) -> Result<(), Failure> {
    told(shared, || shared.ready(bucket, sources))
}

/// Waits for all averages, and writes them.
pub(crate) fn finish(shared: &Shared, targets: &[Source]) -> Result<(), Failure> {
    told(shared, || shared.finish(targets).map(drop))
}

/// Runs `work` and returns its result; the synchroniser keeps the first error.
pub(crate) fn told(
    shared: &Shared,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    work().inspect_err(|failure| {
        let mut kept = shared.failure.lock().expect("no holder panics");
        kept.get_or_insert_with(|| failure.clone());
    })
}
