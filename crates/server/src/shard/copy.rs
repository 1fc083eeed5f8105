//! Replicated state of one server: log, clocks, and how much of the log equals the primary's.

use std::sync::Arc;

use crate::clocks::Clocks;
use crate::log::Log;
use crate::write::Write;

/// Copy of a shard without its tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Copy {
    pub log: Log,
    /// Clocks of all committed pushes, which are the pushes in the tables.
    pub clocks: Clocks,
    /// Last entry up to which the log is known to equal the primary's in this view. Committed entries are
    /// equal on all replicas.
    pub matched: u64,
}

impl Copy {
    /// Resets `matched` to the committed entries: a new primary may have others after them.
    pub fn doubt(&mut self) {
        self.matched = self.log.committed();
    }

    /// Commits the next entry and returns its write.
    pub fn commit(&mut self) -> Arc<Write> {
        let write = self.log.commit();
        self.clocks.apply(&write);
        write
    }
}
