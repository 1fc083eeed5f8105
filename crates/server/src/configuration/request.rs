//! Requests of processes to the coordinator about tables and shards.

use serde::{Deserialize, Serialize};
use thinwire_member::Id;

use crate::configuration::definition::Definition;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::hex;

/// Most bytes of a server's address.
pub const ADDRESS_BYTES_MAX: usize = 300;

/// Request of a process to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ViewRequest {
    /// The job has these tables. The first definition stands, and equal ones are accepted.
    Define(Definition),
    /// The server that asks is reached at this address. It says so whenever the state lacks it.
    Address(String),
    /// A learner has all that is acknowledged, and will have; from the primary of the view.
    Ready {
        /// Number of the shard.
        shard: u32,
        /// Number of the view.
        view: u64,
        /// The learner.
        #[serde(with = "hex")]
        learner: Id,
    },
    /// The job is to make a snapshot, which has the number after the last.
    Snapshot {
        /// Number of the snapshot.
        number: u64,
    },
    /// The primaries of the server that asks have logged these pushes, and let no newer ones in.
    Logged {
        /// Number of the snapshot.
        snapshot: u64,
        /// Newest push of each worker in any of the shards.
        pushes: Frontier,
    },
    /// The server that asks has written the shards whose primary it is.
    Written {
        /// Number of the snapshot.
        snapshot: u64,
    },
    /// The manifest is written, by the primary of the first shard.
    Sealed {
        /// Number of the snapshot.
        snapshot: u64,
        /// Name of its folder.
        name: String,
    },
    /// The server that asks has no part in the snapshot, which is given up.
    Abandon {
        /// Number of the snapshot.
        snapshot: u64,
        /// The reason in one line.
        reason: String,
    },
}

impl ViewRequest {
    /// Returns the request as JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] if the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<ViewRequest, Error> {
        let cannot = |error| Error::corrupt(format!("reading a request about shards: {error}"));
        serde_json::from_slice(bytes).map_err(cannot)
    }
}
