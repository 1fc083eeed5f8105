//! Messages between clients and servers, and between servers.
//!
//! The first byte tells who sends the message, and the message follows, as [`thinwire_wire::encode`] writes
//! it. The values of an answer and the tables of a snapshot are raw bytes behind it. A message longer than
//! [`FRAGMENT_BYTES`] is sent as [`Fragments`]. Each server connects to each of its peers, and sends to a peer
//! on the connection that it opened itself.
//!
//! Laws: `parse(to_bytes(x)) == x`; parsing any bytes gives a message or an error; memory allocated for a
//! message is bounded by its length and [`PULL_ROWS_MAX`] rows.

pub(crate) mod fields;
mod fragments;
mod peer;
mod reply;
mod request;
mod rows;

use serde::Deserialize;
use thinwire_link::{Error, unreadable};
use thinwire_wire::decode_head;

pub use fields::NUMBER_MAX;
pub use fragments::{FRAGMENT_BYTES, Fragments, Outgoing, frames, send_some};
pub use peer::Peer;
pub use reply::FromServer;
pub use request::FromClient;
pub use rows::PULL_ROWS_MAX;

use crate::write::Part;

/// First byte of a fragment.
const FRAGMENT: u8 = 0;
/// First byte of a client's message.
const CLIENT: u8 = 1;
/// First byte of a message to another server.
const PEER: u8 = 2;
/// First byte of a server's message to a client.
const SERVER: u8 = 3;

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
