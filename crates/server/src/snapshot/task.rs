//! Tasks of the thread of a server that writes snapshots.

use std::sync::Arc;

use thinwire_member::Id;

use crate::configuration::{Definition, Layout};
use crate::frontier::Frontier;

/// Tables of a shard as of the frontier of a snapshot, as they travel.
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
    /// Makes the folder of a snapshot that this process has asked for.
    Prepare {
        /// Number of the snapshot.
        snapshot: u64,
        /// Who has asked for it.
        asker: Id,
        /// What the tables are.
        layout: Arc<Layout>,
        /// Names of the tables.
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
    /// Removes what was written of a snapshot that was given up.
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
