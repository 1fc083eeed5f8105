//! Messages of clients to servers.

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
    /// First of all.
    Hello {
        /// The client; `Id(0)` if it only reads.
        client: Id,
        /// Fingerprint of the definition that it knows.
        definition: u64,
    },
    /// A push, whose client is that of the hello.
    Push {
        /// Number of the shard.
        shard: u32,
        /// The push.
        push: Push,
    },
    /// A pull, whose client is that of the hello.
    Pull {
        /// Number of the shard.
        shard: u32,
        /// The pull.
        pull: Pull,
    },
}

impl FromClient {
    /// Returns the message as it travels.
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

    /// Reads a message.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(bytes: &[u8]) -> Result<FromClient, Error> {
        whole(bytes, read).ok_or_else(|| strange("message to a parameter server", bytes))
    }

    /// Reads the shard and the name of a push or pull from its beginning.
    ///
    /// # Errors
    /// If it is no such beginning.
    pub(crate) fn request(bytes: &[u8]) -> Result<(u32, Request), Error> {
        let strange = || strange("beginning of a push or pull", bytes);
        head(&mut Fields::new(bytes)).ok_or_else(strange)
    }
}

/// Reads kind, shard, client and number, with which pushes and pulls begin.
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
