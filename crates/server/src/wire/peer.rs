//! Messages between servers.

use thinwire_link::Error;
use thinwire_member::{Fields, Id};

use super::entry::{read_entries, write_entries};
use super::fields::{id, number, strange, whole, write_u64};
use super::kind::{FORWARD, HAVE, PEER, SNAPSHOT, SUPERSEDED};
use crate::clocks::Clocks;
use crate::message::Message;

/// Message of a server to another server.
#[derive(Clone, Debug, PartialEq)]
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
        /// Tables of the shard; empty except with a snapshot.
        tables: Vec<u8>,
    },
}

impl Peer {
    /// Serialises the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Peer::Hello { server, definition } => {
                let mut bytes = vec![PEER];
                [server.0, *definition].iter().for_each(|field| write_u64(*field, &mut bytes));
                bytes
            }
            Peer::Message { shard, message, tables } => {
                let mut bytes = Peer::head(*shard, message);
                bytes.extend_from_slice(tables);
                bytes
            }
        }
    }

    /// Serialises a message to another copy of a shard, without its tables. The tables of a snapshot are
    /// appended unchanged.
    pub(crate) fn head(shard: u32, message: &Message) -> Vec<u8> {
        let mut bytes = vec![kind(message)];
        bytes.extend(shard.to_le_bytes());
        match message {
            Message::Forward { view, after, entries, committed } => {
                [view, after, committed].iter().for_each(|field| write_u64(**field, &mut bytes));
                write_entries(entries, &mut bytes);
            }
            Message::Have { view, last, committed } => {
                [view, committed].iter().for_each(|field| write_u64(**field, &mut bytes));
                last.iter().for_each(|last| write_u64(*last, &mut bytes));
            }
            Message::Snapshot { view, last, clocks } => {
                [view, last].iter().for_each(|field| write_u64(**field, &mut bytes));
                clocks.write(&mut bytes);
            }
            Message::Superseded { view } => write_u64(*view, &mut bytes),
        }
        bytes
    }

    /// Parses a message.
    ///
    /// # Errors
    /// If the bytes are no valid message.
    pub fn parse(bytes: &[u8]) -> Result<Peer, Error> {
        whole(bytes, read).ok_or_else(|| strange("message between parameter servers", bytes))
    }
}

fn kind(message: &Message) -> u8 {
    match message {
        Message::Forward { .. } => FORWARD,
        Message::Have { .. } => HAVE,
        Message::Snapshot { .. } => SNAPSHOT,
        Message::Superseded { .. } => SUPERSEDED,
    }
}

fn read(fields: &mut Fields<'_>) -> Option<Peer> {
    let kind = fields.u8().ok()?;
    if kind == PEER {
        return Some(Peer::Hello { server: id(fields)?, definition: fields.u64().ok()? });
    }
    let (shard, view) = (fields.u32().ok()?, fields.u64().ok()?);
    let mut tables = Vec::new();
    let message = match kind {
        FORWARD => {
            let (after, committed) = (number(fields)?, number(fields)?);
            Message::Forward { view, after, entries: read_entries(fields)?, committed }
        }
        HAVE => {
            let committed = number(fields)?;
            let has_copy = !fields.clone().rest().is_empty();
            let last = if has_copy { Some(number(fields)?) } else { None };
            Message::Have { view, last, committed }
        }
        SNAPSHOT => {
            let (last, clocks) = (number(fields)?, Clocks::read(fields)?);
            let length = fields.clone().rest().len();
            tables = fields.bytes(length).ok()?.to_vec();
            Message::Snapshot { view, last, clocks }
        }
        SUPERSEDED => Message::Superseded { view },
        _ => return None,
    };
    Some(Peer::Message { shard, message, tables })
}
