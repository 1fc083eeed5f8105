//! Messages from servers to clients.

use serde::{Deserialize, Serialize};
use thinwire_link::{Error, Kind};
use thinwire_member::Id;
use thinwire_wire::{TEXT_BYTES_MAX, cut_text, encode_after};

use super::fields::number;
use super::{SERVER, end, read_head};
use crate::clocks::Pace;
use crate::reason::{Reason, Request, Slowest};

/// Size of an answer without its values, in bytes, at most.
const ANSWER_HEAD_BYTES: usize = 32;
/// Expected message, for errors.
const WHAT: &str = "message of a parameter server";

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
    Misfit {
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
        let (mut message, rest) = read_head(SERVER, WHAT, bytes)?;
        match &mut message {
            FromServer::Answer { values, .. } => {
                *values = rest.to_vec();
                return Ok(message);
            }
            FromServer::Misfit { text, .. } | FromServer::Stranger { text }
                if text.len() > TEXT_BYTES_MAX =>
            {
                let length = text.len();
                let context =
                    format!("sent a text of {length} bytes, expected at most {TEXT_BYTES_MAX}");
                return Err(Error::new(Kind::Corrupt, context));
            }
            _ => {}
        }
        end(WHAT, bytes, rest).map(|()| message)
    }
}
