//! Messages between clients and servers, and between servers.
//!
//! Little-endian, first byte the kind. A message longer than [`FRAGMENT_BYTES`] travels as [`Fragments`].
//! A server is a client of each of its peers: what it sends to one travels on its own connection.
//!
//! Laws: `parse(to_bytes(x)) == x` and `to_bytes(parse(b)) == b`; any bytes are a message or an error;
//! what is allocated for a message is bounded by its length, and by [`PULL_ROWS_MAX`] rows.

mod entry;
mod fragments;
mod peer;
mod reply;
mod request;
mod rows;

use thinwire_link::{Error, Kind};
use thinwire_member::{Fields, Id};

pub use fragments::{FRAGMENT_BYTES, Fragments, frames};
pub use peer::Peer;
pub(crate) use reply::answer_head;
pub use reply::{FromServer, TEXT_BYTES_MAX};
pub use request::FromClient;
pub use rows::PULL_ROWS_MAX;
pub(crate) use rows::{floats, write_floats};

/// Largest number of a push, an entry or a clock: what is added to it fits in 64 bits.
pub const NUMBER_MAX: u64 = 1 << 62;

const FRAGMENT: u8 = 0;

const HELLO: u8 = 1;
const PUSH: u8 = 2;
const PULL: u8 = 3;

const PEER: u8 = 8;
const FORWARD: u8 = 9;
const HAVE: u8 = 10;
const SNAPSHOT: u8 = 11;
const SUPERSEDED: u8 = 12;

const WELCOME: u8 = 16;
const ACKNOWLEDGE: u8 = 17;
const ANSWER: u8 = 18;
const REFUSED: u8 = 19;
const MISFIT: u8 = 20;
const STRANGER: u8 = 21;

/// Message that a server receives.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// A client's.
    Client(FromClient),
    /// Another server's.
    Peer(Peer),
}

impl Received {
    /// Reads a message.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(bytes: &[u8]) -> Result<Received, Error> {
        match bytes.first() {
            Some(PEER..=SUPERSEDED) => Peer::parse(bytes).map(Received::Peer),
            _ => FromClient::parse(bytes).map(Received::Client),
        }
    }
}

fn strange(expected: &str, bytes: &[u8]) -> Error {
    let (length, kind) = (bytes.len(), bytes.first().copied().unwrap_or_default());
    let context = format!("sent {length} bytes of kind {kind}, expected a {expected}");
    Error::new(Kind::Corrupt, context)
}

/// Reads what `read` reads, if nothing is left.
fn whole<T>(bytes: &[u8], read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Option<T> {
    let mut fields = Fields::new(bytes);
    let message = read(&mut fields)?;
    fields.end().ok().map(|()| message)
}

pub(crate) fn id(fields: &mut Fields<'_>) -> Option<Id> {
    fields.u64().ok().map(Id)
}

pub(crate) fn number(fields: &mut Fields<'_>) -> Option<u64> {
    fields.u64().ok().filter(|number| *number <= NUMBER_MAX)
}

/// Reads a number of items of at least `bytes` bytes each, as many of which can follow.
pub(crate) fn count(fields: &mut Fields<'_>, bytes: usize) -> Option<usize> {
    let count = fields.u32().ok()? as usize;
    (count <= fields.clone().rest().len() / bytes).then_some(count)
}

pub(crate) fn write_count(count: usize, bytes: &mut Vec<u8>) {
    let count = u32::try_from(count).expect("fewer than 2^32 items");
    bytes.extend(count.to_le_bytes());
}

pub(crate) fn write_u64(number: u64, bytes: &mut Vec<u8>) {
    bytes.extend(number.to_le_bytes());
}

#[cfg(test)]
mod tests;
