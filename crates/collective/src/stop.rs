//! A handle that ends a group from another thread.

use std::sync::{Arc, OnceLock};

use thinwire_link::Waker;

/// Ends the group it came from; cheap to clone and to use twice.
#[derive(Clone, Debug)]
pub struct Stop {
    reason: Arc<OnceLock<String>>,
    waker: Waker,
}

impl Stop {
    pub(crate) fn new(waker: Waker) -> Stop {
        Stop { reason: Arc::default(), waker }
    }

    /// Ends the group: everything that is under way here fails with `reason`, and so does every
    /// peer. The first reason counts.
    pub fn stop(&self, reason: &str) {
        // Somebody else was first.
        let _ = self.reason.set(reason.to_owned());
        self.waker.wake();
    }

    /// Why the group is to end, if it is.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.get().cloned()
    }
}
