//! A way to end a meeting of ranks early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time in which a cancelled [`super::connect`] ends, unless its store does not answer.
pub(super) const CANCEL_EVERY: Duration = Duration::from_millis(40);

/// Handle that ends [`super::connect`] from another thread; clones share it, and it stays cancelled.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Returns a handle that has not been used.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the calls in progress that have this handle within 50 ms, and later ones at once.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether it was used.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
