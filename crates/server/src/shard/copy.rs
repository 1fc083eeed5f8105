//! Replicated state of one server: log, clocks, and how much of it the primary has confirmed.

use std::sync::Arc;

use crate::clocks::Clocks;
use crate::log::Log;
use crate::write::Write;

/// Copy of a shard, but for its tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Copy {
    pub log: Log,
    /// Pushes that are committed, and so in the tables.
    pub clocks: Clocks,
    /// Last entry that is equal to the primary's in this view, with all before it. What is committed is
    /// equal on all.
    pub matched: u64,
}

impl Copy {
    /// Holds for certain what is committed alone, since another primary may have other entries.
    pub fn doubt(&mut self) {
        self.matched = self.log.committed();
    }

    /// Commits one more entry and returns its write.
    pub fn commit(&mut self) -> Arc<Write> {
        let write = self.log.commit();
        self.clocks.apply(&write);
        write
    }
}
