//! Connections to a server: who is behind each of them.
//!
//! Laws: a client has at most one connection, the one that said hello last; of the long messages of clients
//! that are not whole yet, no more than [`UNFINISHED_BYTES_MAX`] bytes are held, or one message.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use thinwire_link::service::ClientId;
use thinwire_link::{Bandwidth, Error};
use thinwire_member::Id;

use super::meter::Meter;
use crate::reason::Request;
use crate::wire::{Fragments, FromClient};

/// Bytes of messages of clients that are not whole yet, on all connections together.
pub const UNFINISHED_BYTES_MAX: usize = 256 << 20;

/// Process behind a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// It has not said hello.
    Unknown,
    /// It has said hello, and waits until the server knows the definition.
    Waiting {
        /// What it is, if the definition is the same.
        claims: Claim,
        /// Fingerprint of its definition.
        definition: u64,
    },
    /// It is known.
    Known(Claim),
}

/// What a process says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A client; one that only reads has an id of its own, which no worker has.
    Client {
        /// Id as the shards know it.
        id: Id,
        /// Id that it says.
        said: Id,
    },
    /// Another server.
    Peer(Id),
}

/// What a frame is to a server.
#[derive(Debug, PartialEq)]
pub enum Frame<'a> {
    /// A message, or the end of one.
    Whole(Cow<'a, [u8]>),
    /// A part of a message.
    Part,
    /// A part of a request for which there is no room: its shard and name. The rest of it is dropped.
    NoRoom(u32, Request),
}

/// Connections, and the clients behind them.
#[derive(Debug)]
pub struct Visitors {
    visitors: BTreeMap<ClientId, Place>,
    clients: BTreeMap<Id, ClientId>,
    /// Bytes of messages of clients that are not whole yet, and the most of them.
    unfinished: usize,
    unfinished_max: usize,
}

/// A connection.
#[derive(Debug)]
struct Place {
    visitor: Visitor,
    fragments: Fragments,
    /// Meter of its bytes, if its rate is limited.
    meter: Option<Meter>,
}

impl Default for Visitors {
    fn default() -> Visitors {
        let (visitors, clients) = (BTreeMap::new(), BTreeMap::new());
        Visitors { visitors, clients, unfinished: 0, unfinished_max: UNFINISHED_BYTES_MAX }
    }
}

impl Visitors {
    /// Takes a connection in.
    pub fn open(&mut self, connection: ClientId) {
        let (visitor, fragments) = (Visitor::Unknown, Fragments::default());
        self.visitors.insert(connection, Place { visitor, fragments, meter: None });
    }

    /// Forgets a connection.
    pub fn close(&mut self, connection: ClientId) {
        let Some(place) = self.visitors.remove(&connection) else { return };
        if let Visitor::Known(Claim::Client { id, .. }) = place.visitor {
            self.unfinished -= place.fragments.bytes();
            if self.clients.get(&id) == Some(&connection) {
                self.clients.remove(&id);
            }
        }
    }

    /// Returns who is behind a connection.
    pub fn visitor(&self, connection: ClientId) -> Visitor {
        self.visitors.get(&connection).map_or(Visitor::Unknown, |place| place.visitor)
    }

    /// Returns all connections.
    pub fn connections(&self) -> impl Iterator<Item = ClientId> {
        self.visitors.keys().copied()
    }

    /// Returns the number of messages of clients that are not whole yet.
    pub fn unfinished(&self) -> usize {
        let is_unfinished = |place: &&Place| place.fragments.bytes() > 0;
        self.visitors.values().filter(is_unfinished).count()
    }

    /// Takes a frame in.
    ///
    /// # Errors
    /// If it does not belong there, or its message has more than `bytes_max` bytes.
    pub fn assemble<'a>(
        &mut self,
        connection: ClientId,
        frame: &'a [u8],
        bytes_max: usize,
    ) -> Result<Frame<'a>, Error> {
        // Servers open every connection before its first message.
        let Some(place) = self.visitors.get_mut(&connection) else { return Ok(Frame::Part) };
        let before = place.fragments.bytes();
        let whole = place.fragments.take(frame, bytes_max)?;
        // Other servers are few, and what they send has no other way.
        if matches!(place.visitor, Visitor::Known(Claim::Client { .. })) {
            let own = place.fragments.bytes();
            self.unfinished = self.unfinished - before + own;
            if self.unfinished > self.unfinished_max && own < self.unfinished {
                self.unfinished -= own;
                let (shard, request) = FromClient::request(&place.fragments.give_up())?;
                return Ok(Frame::NoRoom(shard, request));
            }
        }
        Ok(whole.map_or(Frame::Part, Frame::Whole))
    }

    /// Limits the rate of a client from now on.
    pub fn limit(&mut self, connection: ClientId, rate: Bandwidth, now: Instant) {
        let place = self.visitors.get_mut(&connection);
        place.into_iter().for_each(|place| place.meter = Some(Meter::new(rate, now)));
    }

    /// Counts bytes from or to a client. Returns whether it is to be held from now on.
    pub fn count(&mut self, connection: ClientId, bytes: usize, now: Instant) -> bool {
        let meter = self.visitors.get_mut(&connection).and_then(|place| place.meter.as_mut());
        meter.is_some_and(|meter| meter.count(bytes, now))
    }

    /// Returns when the first client is no longer to be held.
    pub fn deadline(&self) -> Option<Instant> {
        let until = |place: &Place| place.meter.as_ref().and_then(Meter::held_until);
        self.visitors.values().filter_map(until).min()
    }

    /// Returns the clients that are no longer to be held.
    pub fn released(&mut self, now: Instant) -> Vec<ClientId> {
        let is_released = |(connection, place): (&ClientId, &mut Place)| {
            let is_released = place.meter.as_mut().is_some_and(|meter| meter.release(now));
            is_released.then_some(*connection)
        };
        self.visitors.iter_mut().filter_map(is_released).collect()
    }

    /// Sets who is behind a connection. Returns the connection that the same client had before.
    pub fn set(&mut self, connection: ClientId, visitor: Visitor) -> Option<ClientId> {
        self.visitors.get_mut(&connection)?.visitor = visitor;
        let Visitor::Known(Claim::Client { id, .. }) = visitor else { return None };
        self.clients.insert(id, connection).filter(|before| *before != connection)
    }

    /// Returns the connection of a client, by its id as the shards know it.
    pub fn connection(&self, client: Id) -> Option<ClientId> {
        self.clients.get(&client).copied()
    }

    /// Returns all connections that wait for the definition.
    pub fn waiting(&self) -> Vec<(ClientId, Claim, u64)> {
        let waiting = |(connection, place): (&ClientId, &Place)| {
            let Visitor::Waiting { claims, definition } = place.visitor else { return None };
            Some((*connection, claims, definition))
        };
        self.visitors.iter().filter_map(waiting).collect()
    }
}

#[cfg(test)]
impl Visitors {
    /// Sets the most bytes of messages of clients that are not whole yet.
    pub fn bound(&mut self, unfinished_max: usize) {
        self.unfinished_max = unfinished_max;
    }

    /// Returns the bytes of messages of clients that are not whole yet.
    pub fn unfinished_bytes(&self) -> usize {
        self.unfinished
    }
}
