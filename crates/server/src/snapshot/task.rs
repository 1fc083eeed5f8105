//! Tasks of the thread that writes a server's snapshots.

use std::sync::Arc;

use thinwire_member::Id;

use crate::configuration::{Definition, Layout};
use crate::frontier::Frontier;

/// Tables of a shard at the frontier of a snapshot, in wire format.
#[derive(Debug, PartialEq, Eq)]
pub struct Captured {
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Number of the shard.
    pub shard: u32,
    /// The tables.
    pub tables: Vec<u8>,
}

/// Task of the thread that writes snapshots.
#[derive(Debug)]
pub enum Task {
    /// Creates the folder of the draft.
    Prepare {
        /// Number of the snapshot.
        snapshot: u64,
        /// Process that requested the snapshot.
        asker: Id,
        /// Layout of the tables.
        layout: Arc<Layout>,
        /// Definition of the tables.
        definition: Definition,
    },
    /// Writes the file of a shard.
    Write(Captured),
    /// Writes the manifest, once all shards are written.
    Seal {
        /// Number of the snapshot.
        snapshot: u64,
        /// Newest pushes in the snapshot.
        frontier: Frontier,
    },
    /// Removes the draft of a failed snapshot.
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
