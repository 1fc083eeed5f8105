//! Context of a group and of all that is made from it: where its ranks meet, and how they end.

use std::sync::Arc;
use std::time::Duration;

use thinwire_job::{Meeting, Place};

use crate::lifetime::{Lifetime, Member};

/// Context that a group shares with all that is made from it.
pub(crate) struct Context {
    pub(crate) place: Place,
    pub(crate) meeting: Arc<Meeting>,
    pub(crate) timeout: Duration,
    pub(crate) lifetime: Lifetime,
}

impl Context {
    /// That of a split, which ends with its parent or alone.
    pub(crate) fn child(&self) -> Arc<Context> {
        let (place, meeting) = (self.place.clone(), Arc::clone(&self.meeting));
        let context = Context { place, meeting, timeout: self.timeout, lifetime: Lifetime::new() };
        let context = Arc::new(context);
        self.lifetime.add(&context);
        context
    }
}

impl Member for Context {
    fn abort(&self, reason: &str) {
        self.lifetime.abort(reason);
    }

    fn close(&self) {
        self.lifetime.close();
    }
}
