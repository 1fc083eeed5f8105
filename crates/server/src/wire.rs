//! Messages between clients and servers, and between servers.
//!
//! Numbers are little-endian, and the first byte is the kind. A message longer than [`FRAGMENT_BYTES`] is
//! sent as [`Fragments`]. Each server connects to each of its peers, and sends to a peer on the connection
//! that it opened itself.
//!
//! Laws: `parse(to_bytes(x)) == x` and `to_bytes(parse(b)) == b`; parsing any bytes gives a message or an
//! error; memory allocated for a message is bounded by its length and [`PULL_ROWS_MAX`] rows.

mod entry;
pub(crate) mod fields;
mod fragments;
mod kind;
mod peer;
mod reply;
mod request;
mod rows;

use thinwire_link::Error;

pub use fields::NUMBER_MAX;
pub use fragments::{FRAGMENT_BYTES, Fragments, frames};
use kind::{PEER, SUPERSEDED};
pub use peer::Peer;
pub(crate) use reply::answer_head;
pub use reply::{FromServer, TEXT_BYTES_MAX};
pub use request::FromClient;
pub use rows::PULL_ROWS_MAX;

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
            Some(PEER..=SUPERSEDED) => Peer::parse(bytes).map(Received::Peer),
            _ => FromClient::parse(bytes).map(Received::Client),
        }
    }
}

#[cfg(test)]
mod tests;
