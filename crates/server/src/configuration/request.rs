//! Requests of processes to the coordinator about tables and shards.

use serde::{Deserialize, Serialize};
use thinwire_member::Id;

use crate::configuration::definition::Definition;
use crate::configuration::hex;
use crate::error::Error;

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
