//! Messages from clients to servers.

use thinwire_link::Error;
use thinwire_member::{Fields, Id};

use super::fields::{id, number, strange, whole, write_u64};
use super::kind::{HELLO, PULL, PUSH};
use super::rows::{read_parts, read_pull, write_parts, write_pull};
use crate::reason::Request;
use crate::write::{Pull, Push};

/// Message of a client to a server.
#[derive(Clone, Debug, PartialEq)]
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

impl FromClient {
    /// Serialises the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            FromClient::Hello { client, definition } => {
                bytes.push(HELLO);
                [client.0, *definition].iter().for_each(|field| write_u64(*field, &mut bytes));
            }
            FromClient::Push { shard, push } => {
                bytes.push(PUSH);
                bytes.extend(shard.to_le_bytes());
                let Push { client, number, step, .. } = push;
                [client.0, *number, *step].iter().for_each(|it| write_u64(*it, &mut bytes));
                write_parts(&push.parts, &mut bytes);
            }
            FromClient::Pull { shard, pull } => {
                bytes.push(PULL);
                bytes.extend(shard.to_le_bytes());
                write_pull(pull, &mut bytes);
            }
        }
        bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<FromClient, Error> {
        whole(bytes, read).ok_or_else(|| strange("message to a parameter server", bytes))
    }

    /// Reads shard and number of a push or pull from its first bytes.
    ///
    /// # Errors
    /// If the bytes are not the start of a push or pull.
    pub(crate) fn request(bytes: &[u8]) -> Result<(u32, Request), Error> {
        let strange = || strange("beginning of a push or pull", bytes);
        head(&mut Fields::new(bytes)).ok_or_else(strange)
    }
}

/// Reads the common start of pushes and pulls: kind, shard, client and number.
fn head(fields: &mut Fields<'_>) -> Option<(u32, Request)> {
    let (kind, shard, _) = (fields.u8().ok()?, fields.u32().ok()?, id(fields)?);
    let number = fields.u64().ok()?;
    match kind {
        PUSH => Some((shard, Request::Push(number))),
        PULL => Some((shard, Request::Pull(number))),
        _ => None,
    }
}

fn read(fields: &mut Fields<'_>) -> Option<FromClient> {
    match fields.u8().ok()? {
        HELLO => Some(FromClient::Hello { client: id(fields)?, definition: fields.u64().ok()? }),
        PUSH => {
            let shard = fields.u32().ok()?;
            let (client, number, step) = (id(fields)?, number(fields)?, number(fields)?);
            let push = Push { client, number, step, parts: read_parts(fields)? };
            Some(FromClient::Push { shard, push })
        }
        PULL => Some(FromClient::Pull { shard: fields.u32().ok()?, pull: read_pull(fields)? }),
        _ => None,
    }
}
