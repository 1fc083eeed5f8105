//! Messages from clients to servers.

use serde::{Deserialize, Serialize};
use thinwire_link::{Error, unreadable};
use thinwire_member::Id;
use thinwire_wire::encode_after;

use super::{CLIENT, read, read_head, values_bytes};
use crate::reason::Request;
use crate::write::{Pull, Push};

/// Message of a client to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromClient {
    /// First message of a connection.
    Hello {
        /// Id of the client; `Id(0)` for a reader.
        client: Id,
        /// Fingerprint of the client's definition.
        definition: u64,
    },
    /// A push of the client in the hello.
    Push {
        /// Number of the shard.
        shard: u32,
        /// The push.
        push: Push,
    },
    /// A pull of the client in the hello.
    Pull {
        /// Number of the shard.
        shard: u32,
        /// The pull.
        pull: Pull,
    },
}

/// Beginning of a [`FromClient`], as it is read from the first bytes of one.
#[derive(Deserialize)]
enum Beginning {
    Hello,
    Push { shard: u32, _client: Id, number: u64 },
    Pull { shard: u32, _client: Id, number: u64 },
}

impl FromClient {
    /// Serialises the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let parts = match self {
            FromClient::Push { push, .. } => &push.parts[..],
            _ => &[],
        };
        let mut bytes = Vec::with_capacity(64 + values_bytes(parts));
        bytes.push(CLIENT);
        encode_after(bytes, self)
    }

    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<FromClient, Error> {
        read(CLIENT, "message to a parameter server", bytes)
    }

    /// Reads shard and number of a push or pull from its first bytes.
    ///
    /// # Errors
    /// If the bytes are not the start of a push or pull.
    pub(crate) fn request(bytes: &[u8]) -> Result<(u32, Request), Error> {
        const WHAT: &str = "beginning of a push or pull";
        match read_head(CLIENT, WHAT, bytes)?.0 {
            Beginning::Push { shard, number, .. } => Ok((shard, Request::Push(number))),
            Beginning::Pull { shard, number, .. } => Ok((shard, Request::Pull(number))),
            Beginning::Hello => Err(unreadable(WHAT, bytes, &"a hello")),
        }
    }
}
