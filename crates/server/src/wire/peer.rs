//! Messages between servers.

use serde::{Deserialize, Serialize};
use thinwire_link::Error;
use thinwire_member::Id;
use thinwire_wire::encode_after;

use super::{PEER, end, read_head, values_bytes};
use crate::message::Message;
use crate::write::Write;

/// Expected message, for errors.
const WHAT: &str = "message between parameter servers";

/// Message of a server to another server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Peer {
    /// First message of a connection.
    Hello {
        /// Id of the sender.
        server: Id,
        /// Fingerprint of the sender's definition.
        definition: u64,
    },
    /// Message to another copy of a shard.
    Message {
        /// Number of the shard.
        shard: u32,
        /// The message.
        message: Message,
        /// Tables of the shard, the raw bytes behind the other fields; empty except with a snapshot.
        #[serde(skip)]
        tables: Vec<u8>,
    },
}

impl Peer {
    /// Serialises the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (values, tables) = match self {
            Peer::Message { message: Message::Forward { entries, .. }, tables, .. } => {
                let parts = |write: &Write| match write {
                    Write::Update { parts, .. } => values_bytes(parts),
                    Write::Workers(_) => 0,
                };
                (entries.iter().map(|entry| 64 + parts(&entry.write)).sum(), &tables[..])
            }
            Peer::Message { tables, .. } => (0, &tables[..]),
            Peer::Hello { .. } => (0, &[][..]),
        };
        let mut bytes = Vec::with_capacity(64 + values + tables.len());
        bytes.push(PEER);
        bytes = encode_after(bytes, self);
        bytes.extend_from_slice(tables);
        bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<Peer, Error> {
        let (mut peer, rest) = read_head(PEER, WHAT, bytes)?;
        if let Peer::Message { message: Message::Snapshot { .. }, tables, .. } = &mut peer {
            *tables = rest.to_vec();
            return Ok(peer);
        }
        end(WHAT, bytes, rest).map(|()| peer)
    }
}
