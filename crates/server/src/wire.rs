//! Messages between clients and servers, and between servers.
//!
//! Little-endian, first byte the kind. A message longer than [`FRAGMENT_BYTES`] travels as [`Fragments`].
//! A server is a client of each of its peers: what it sends to one travels on its own connection.
//!
//! Laws: `parse(to_bytes(x)) == x` and `to_bytes(parse(b)) == b`; any bytes are a message or an error;
//! what is allocated for a message is bounded by its length, and by [`PULL_ROWS_MAX`] rows.

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

#[cfg(test)]
mod tests;
