//! Tasks of the thread that writes a server's snapshots.

use std::sync::Arc;

use thinwire_member::Id;

use crate::configuration::{Definition, Layout};
use crate::frontier::Frontier;

/// Tables of a shard at the frontier of a snapshot, in their bytes on the wire.
#[derive(Debug, PartialEq, Eq)]
pub struct Captured {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Number of the shard.
    pub shard: u32,
    /// The tables.
    pub tables: Vec<u8>,
}

/// Task of the thread that writes.
#[derive(Debug)]
pub enum Task {
    /// Creates the folder of a draft.
    Prepare {
        /// Number of the snapshot.
        snapshot: u64,
        /// Process that has asked for the snapshot.
        asker: Id,
        /// Layout of the tables.
        layout: Arc<Layout>,
        /// Definition of the tables.
        definition: Definition,
    },
    /// Writes a shard.
    Write(Captured),
    /// Writes the manifest, when all shards are written.
    Seal {
        /// Number of the snapshot.
        snapshot: u64,
        /// Pushes that are in it.
        frontier: Frontier,
    },
    /// Removes the draft of a snapshot that has failed.
    Discard {
        /// Number of the snapshot.
        snapshot: u64,
    },
}

impl Task {
    /// Returns the number of the snapshot.
    pub fn snapshot(&self) -> u64 {
        match self {
            Task::Write(captured) => captured.snapshot,
            Task::Prepare { snapshot, .. }
            | Task::Seal { snapshot, .. }
            | Task::Discard { snapshot } => *snapshot,
        }
    }
}
