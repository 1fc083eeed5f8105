//! Requests of processes to the coordinator about tables and shards.

use serde::{Deserialize, Serialize};
use thinwire_member::Id;
use thinwire_wire::{decode, encode};

use crate::configuration::definition::{Definition, DefinitionFields};
use crate::error::Error;
use crate::frontier::Frontier;

/// Largest length of a server's address, of the name of the files with which it begins, or of the reason for which
/// it leaves, in bytes.
pub const NAME_BYTES_MAX: usize = 300;

/// Request of a process to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViewRequest {
    /// Defines the tables of the job. The first definition is kept; equal ones are accepted, and others
    /// refused.
    Define(#[serde(with = "DefinitionFields")] Definition),
    /// Reports the name of the files with which the sending server is to begin. A server sends it before
    /// its address, and repeats it as long as the job has no views and the job's state lacks the name.
    Origin(String),
    /// Reports the memory of the sending server. A server sends it before its address, and repeats it as
    /// long as the job has no views and the job's state lacks the memory.
    Memory {
        /// Memory for the job's tables, in bytes.
        bytes: u64,
    },
    /// Reports why the sending server leaves the job: it cannot keep or load its rows.
    Failed {
        /// The reason in one line.
        reason: String,
    },
    /// Reports the address of the sending server. A server repeats this while the job's state lacks its
    /// address.
    Address(String),
    /// Reports that a learner has all acknowledged writes and will get all later ones. The primary of
    /// the view sends it.
    Ready {
        /// Number of the shard.
        shard: u32,
        /// Number of the view.
        view: u64,
        /// The learner.
        learner: Id,
    },
    /// Reports that a replica has come back with its copies of shards that no server of the epoch has. A
    /// server repeats this while the state lists such a shard.
    Kept {
        /// Numbers of the shards and of their last views.
        views: Vec<(u32, u64)>,
    },
    /// Asks for a snapshot of the job. The snapshot's number is one more than the number of the last one.
    Snapshot {
        /// Number of the snapshot.
        number: u64,
    },
    /// Reports the newest pushes in the logs of the shards whose primary this server is. These shards admit
    /// no newer pushes.
    Logged {
        /// Number of the snapshot.
        snapshot: u64,
        /// Newest push of each worker in any of these shards.
        pushes: Frontier,
    },
    /// Reports that this server has written all shards whose primary it is.
    Written {
        /// Number of the snapshot.
        snapshot: u64,
    },
    /// Reports that the primary of shard 0 has written the manifest.
    Sealed {
        /// Number of the snapshot.
        snapshot: u64,
        /// Name of the snapshot's folder.
        name: String,
    },
    /// Reports that this server cannot take part in the snapshot, which therefore fails.
    Abandon {
        /// Number of the snapshot.
        snapshot: u64,
        /// The reason in one line.
        reason: String,
    },
}

impl ViewRequest {
    /// Returns the bytes of the request as they are sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Parses a request.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if the bytes are not a valid request.
    pub fn parse(bytes: &[u8]) -> Result<ViewRequest, Error> {
        decode(bytes)
            .map_err(|why| Error::corrupt(format!("reading a request about shards: {why}")))
    }
}
