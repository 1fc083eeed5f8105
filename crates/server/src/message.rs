//! Messages between the servers of a shard.
//!
//! All messages are idempotent, and any may be lost: the primary's next tick repeats what is missing.

use serde::{Deserialize, Serialize};

use crate::clocks::Clocks;
use crate::clocks::number;
use crate::write::Entry;

/// Message between two servers of a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Entries of the log, from the primary to a backup or learner.
    Forward {
        /// Number of the view.
        view: u64,
        /// Number of the entry before the first one.
        #[serde(deserialize_with = "number")]
        after: u64,
        /// The entries.
        entries: Vec<Entry>,
        /// Number of the last entry that is committed.
        #[serde(deserialize_with = "number")]
        committed: u64,
    },
    /// Answer of a backup or learner to the primary.
    Have {
        /// Number of the view.
        view: u64,
        /// Last entry up to which the log equals the primary's; `None` without a copy.
        #[serde(deserialize_with = "number")]
        last: Option<u64>,
        /// Last entry that the sender knows to be committed.
        #[serde(deserialize_with = "number")]
        committed: u64,
    },
    /// State of the shard, from the primary to a server that has no copy or one that is too old. It carries
    /// the tables as they are when it is sent.
    Snapshot {
        /// Number of the view.
        view: u64,
        /// Number of the last entry that the tables contain.
        #[serde(deserialize_with = "number")]
        last: u64,
        /// Pushes that the tables contain.
        #[serde(deserialize_with = "Clocks::sound")]
        clocks: Clocks,
    },
    /// Answer to a message of an earlier view's primary.
    Superseded {
        /// Number of the later view.
        view: u64,
    },
}
