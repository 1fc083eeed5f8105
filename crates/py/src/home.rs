//! What a group and all that is made from it share: where its ranks meet, and how they end.

use std::sync::Arc;
use std::time::Duration;

use thinwire_job::{Meeting, Place};

use crate::circle::{Circle, Member};

/// What a group and all that is made from it share.
pub(crate) struct Home {
    pub(crate) place: Place,
    pub(crate) meeting: Arc<Meeting>,
    pub(crate) timeout: Duration,
    pub(crate) circle: Circle,
}

impl Home {
    /// That of a split, which ends with its parent or alone.
    pub(crate) fn child(&self) -> Arc<Home> {
        let (place, meeting) = (self.place.clone(), Arc::clone(&self.meeting));
        let home = Home { place, meeting, timeout: self.timeout, circle: Circle::new() };
        let home = Arc::new(home);
        self.circle.add(&home);
        home
    }
}

impl Member for Home {
    fn abort(&self, reason: &str) {
        self.circle.abort(reason);
    }

    fn close(&self) {
        self.circle.close();
    }
}
