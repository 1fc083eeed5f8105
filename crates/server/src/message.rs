//! Messages between the servers of a shard.
//!
//! All are idempotent, and none is needed: whatever is lost, the primary's next tick repeats it.

use crate::clocks::Clocks;
use crate::write::Entry;

/// Message between two servers of a shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Primary to the others: entries of the log.
    Forward {
        /// Number of the view.
        view: u64,
        /// Number of the entry before the first one.
        after: u64,
        /// The entries.
        entries: Vec<Entry>,
        /// Number of the last entry that is committed.
        committed: u64,
    },
    /// Answer to the primary.
    Have {
        /// Number of the view.
        view: u64,
        /// Last entry that is equal to the primary's, with all before it; none without a copy.
        last: Option<u64>,
        /// Last entry that is known to be committed.
        committed: u64,
    },
    /// Primary to a server without a copy, or with one from too long ago. It travels with the tables as
    /// they are when it is sent.
    Snapshot {
        /// Number of the view.
        view: u64,
        /// Number of the last entry that the tables contain.
        last: u64,
        /// Pushes that the tables contain.
        clocks: Clocks,
    },
    /// Answer to the primary of an earlier view.
    Superseded {
        /// Number of the later view.
        view: u64,
    },
}
