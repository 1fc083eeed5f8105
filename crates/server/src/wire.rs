//! Messages between clients and servers, and between servers.
//!
//! The first byte tells who sends the message, and the message follows, as [`thinwire_wire::encode`] writes
//! it. The values of an answer and the tables of a snapshot are raw bytes behind it. A message longer than
//! [`FRAGMENT_BYTES`] is sent as [`Fragments`]. Each server connects to each of its peers, and sends to a peer
//! on the connection that it opened itself.
//!
//! Laws: `parse(to_bytes(x)) == x`; parsing any bytes gives a message or an error; memory allocated for a
//! message is bounded by its length and [`PULL_ROWS_MAX`] rows.

mod fragments;
mod rows;

use serde::{Deserialize, Serialize};
use thinwire_link::{Error, Kind, unreadable};
use thinwire_member::Id;
use thinwire_wire::{TEXT_BYTES_MAX, cut_text, decode_head, encode_after};

pub use fragments::{FRAGMENT_BYTES, Fragments, Outgoing, frames, send_some};
pub use rows::PULL_ROWS_MAX;

use crate::clocks::{Pace, number};
use crate::message::Message;
use crate::reason::{Reason, Request, Slowest};
use crate::write::{Part, Pull, Push, Write};

/// First byte of a fragment.
const FRAGMENT: u8 = 0;
/// First byte of a client's message.
const CLIENT: u8 = 1;
/// First byte of a message to another server.
const PEER: u8 = 2;
/// First byte of a server's message to a client.
const SERVER: u8 = 3;
/// Size of an answer without its values, in bytes, at most.
const ANSWER_HEAD_BYTES: usize = 32;
/// Expected message of a server, for errors.
const REPLY: &str = "message of a parameter server";
/// Expected message of another server, for errors.
const PEER_MESSAGE: &str = "message between parameter servers";

/// Message that a server receives.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Message of a client.
    Client(FromClient),
    /// Message of another server.
    Peer(Peer),
}

impl Received {
    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<Received, Error> {
        match bytes.first() {
            Some(&PEER) => Peer::parse(bytes).map(Received::Peer),
            _ => FromClient::parse(bytes).map(Received::Client),
        }
    }
}

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

/// Message of a server to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromServer {
    /// Answer to the hello of a client or another server.
    Welcome {
        /// Id of the server.
        server: Id,
    },
    /// A push is committed.
    Acknowledge {
        /// Number of the shard.
        shard: u32,
        /// Number of the push.
        #[serde(deserialize_with = "number")]
        number: u64,
        /// Progress of the workers.
        pace: Pace,
    },
    /// A request waits for a slower worker. It stays where it is.
    Delayed {
        /// Number of the shard.
        shard: u32,
        /// The request.
        request: Request,
        /// Worker for which it waits.
        slowest: Slowest,
    },
    /// Values of rows.
    Answer {
        /// Number of the shard.
        shard: u32,
        /// Number of the pull.
        request: u64,
        /// Progress of the workers.
        pace: Pace,
        /// Values in the order of the pull, row by row, in the formats of their tables: the raw bytes behind
        /// the other fields.
        #[serde(skip)]
        values: Vec<u8>,
    },
    /// A request is refused; the client has to repeat it, to this server or another.
    Refused {
        /// Number of the shard.
        shard: u32,
        /// The request.
        request: Request,
        /// The reason.
        reason: Reason,
    },
    /// A request does not fit the tables, and would not if it were repeated.
    SchemaError {
        /// Number of the shard.
        shard: u32,
        /// The request.
        request: Request,
        /// The reason in one line.
        #[serde(serialize_with = "cut_text")]
        text: String,
    },
    /// The client is not admitted, and the connection is closed.
    Stranger {
        /// The reason in one line.
        #[serde(serialize_with = "cut_text")]
        text: String,
    },
}

impl FromServer {
    /// Serialises the message. Texts that are too long are cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let values = match self {
            FromServer::Answer { values, .. } => &values[..],
            _ => &[],
        };
        let mut bytes = self.head(values.len());
        bytes.extend_from_slice(values);
        bytes
    }

    /// Serialises the message without its values, with capacity for `values` bytes of them. They are appended
    /// unchanged.
    pub(crate) fn head(&self, values: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_HEAD_BYTES + values);
        bytes.push(SERVER);
        encode_after(bytes, self)
    }

    /// Returns the progress of the workers, if the message tells it.
    pub(crate) fn pace(&self) -> Option<Pace> {
        match self {
            FromServer::Acknowledge { pace, .. } | FromServer::Answer { pace, .. } => Some(*pace),
            _ => None,
        }
    }

    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<FromServer, Error> {
        let (mut message, rest) = read_head(SERVER, REPLY, bytes)?;
        match &mut message {
            FromServer::Answer { values, .. } => {
                *values = rest.to_vec();
                return Ok(message);
            }
            FromServer::SchemaError { text, .. } | FromServer::Stranger { text }
                if text.len() > TEXT_BYTES_MAX =>
            {
                let length = text.len();
                let context =
                    format!("sent a text of {length} bytes, expected at most {TEXT_BYTES_MAX}");
                return Err(Error::new(Kind::Corrupt, context));
            }
            _ => {}
        }
        end(REPLY, bytes, rest).map(|()| message)
    }
}

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
        // About the length, so that a large message is not copied while it grows.
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
        let (mut peer, rest) = read_head(PEER, PEER_MESSAGE, bytes)?;
        if let Peer::Message { message: Message::Snapshot { .. }, tables, .. } = &mut peer {
            *tables = rest.to_vec();
            return Ok(peer);
        }
        end(PEER_MESSAGE, bytes, rest).map(|()| peer)
    }
}

/// Reads a message from all bytes.
fn read<'a, T: Deserialize<'a>>(kind: u8, expected: &str, bytes: &'a [u8]) -> Result<T, Error> {
    let (message, rest) = read_head(kind, expected, bytes)?;
    end(expected, bytes, rest).map(|()| message)
}

/// Reads a message from the first bytes; returns it and the others.
fn read_head<'a, T: Deserialize<'a>>(
    kind: u8,
    expected: &str,
    bytes: &'a [u8],
) -> Result<(T, &'a [u8]), Error> {
    let content = bytes.strip_prefix(&[kind]);
    let content = content.ok_or_else(|| unreadable(expected, bytes, &"another kind"))?;
    decode_head(content).map_err(|why| unreadable(expected, bytes, &why))
}

/// Checks that no bytes are left behind a message.
fn end(expected: &str, bytes: &[u8], rest: &[u8]) -> Result<(), Error> {
    match rest.len() {
        0 => Ok(()),
        found => Err(unreadable(expected, bytes, &thinwire_wire::Malformed::Long { found })),
    }
}

/// Returns the approximate size of parts in bytes.
fn values_bytes(parts: &[Part]) -> usize {
    parts.iter().map(|part| 32 + 8 * part.rows.len() + part.gradient.bytes().len()).sum()
}

#[cfg(test)]
mod tests;
