//! Connections to a server: who is behind each of them.
//!
//! Law: a client has at most one connection, the one that said hello last.

use std::borrow::Cow;
use std::collections::BTreeMap;

use thinwire_link::Error;
use thinwire_link::service::ClientId;
use thinwire_member::Id;

use crate::wire::Fragments;

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

/// Connections, and the clients behind them.
#[derive(Debug, Default)]
pub struct Visitors {
    visitors: BTreeMap<ClientId, (Visitor, Fragments)>,
    clients: BTreeMap<Id, ClientId>,
}

impl Visitors {
    /// Takes a connection in.
    pub fn open(&mut self, connection: ClientId) {
        self.visitors.insert(connection, (Visitor::Unknown, Fragments::default()));
    }

    /// Forgets a connection.
    pub fn close(&mut self, connection: ClientId) {
        if let Some((Visitor::Known(Claim::Client { id, .. }), _)) =
            self.visitors.remove(&connection)
            && self.clients.get(&id) == Some(&connection)
        {
            self.clients.remove(&id);
        }
    }

    /// Returns who is behind a connection.
    pub fn visitor(&self, connection: ClientId) -> Visitor {
        self.visitors.get(&connection).map_or(Visitor::Unknown, |(visitor, _)| *visitor)
    }

    /// Takes a frame in, and returns the message that it is or ends.
    ///
    /// # Errors
    /// If it does not belong there, or its message has more than `bytes_max` bytes.
    pub fn assemble<'a>(
        &mut self,
        connection: ClientId,
        frame: &'a [u8],
        bytes_max: usize,
    ) -> Result<Option<Cow<'a, [u8]>>, Error> {
        let (_, fragments) = self.visitors.entry(connection).or_insert_with(|| {
            // Servers open every connection before its first message.
            (Visitor::Unknown, Fragments::default())
        });
        fragments.take(frame, bytes_max)
    }

    /// Sets who is behind a connection. Returns the connection that the same client had before.
    pub fn set(&mut self, connection: ClientId, visitor: Visitor) -> Option<ClientId> {
        let (known, _) = self.visitors.get_mut(&connection)?;
        *known = visitor;
        let Visitor::Known(Claim::Client { id, .. }) = visitor else { return None };
        self.clients.insert(id, connection).filter(|before| *before != connection)
    }

    /// Returns the connection of a client, by its id as the shards know it.
    pub fn connection(&self, client: Id) -> Option<ClientId> {
        self.clients.get(&client).copied()
    }

    /// Returns all connections that wait for the definition.
    pub fn waiting(&self) -> Vec<(ClientId, Claim, u64)> {
        let waiting = |(connection, (visitor, _)): (&ClientId, &(Visitor, Fragments))| {
            let Visitor::Waiting { claims, definition } = *visitor else { return None };
            Some((*connection, claims, definition))
        };
        self.visitors.iter().filter_map(waiting).collect()
    }
}
