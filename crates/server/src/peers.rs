//! Connections of a server to the other servers, over which it sends its shards' messages.
//!
//! A peer is dialled until it welcomes this server, and dialled again after growing pauses when the
//! connection breaks. Only failed attempts are reported as the loss of the peer. A peer does not answer
//! each message; the answer to a ping after several messages shows that they have arrived. Law: the
//! messages of a mailbox are sent whole and in order on one connection. For a slow peer, this server
//! stores only the mailbox and one message.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use thinwire_link::Backoff;
use thinwire_link::endpoint::{ClientId, Outbox};
use thinwire_link::{Error, Kind};
use thinwire_member::Id;

use crate::mailbox::{Mailbox, Outbound, entry_bytes};
use crate::message::Message;
use crate::wire::{FromServer, Outgoing, Peer as PeerMessage, send_some};
use crate::write::Entry;

/// Bytes of entries per message; a larger entry is sent alone.
const ENTRIES_BYTES_MAX: usize = 4 << 20;
/// Number of failures to connect after which the peer is reported as lost again.
const FAILURES: u32 = 8;

/// Callback with the id of a peer that cannot be reached.
pub type Lost = Arc<dyn Fn(Id) + Send + Sync>;

/// Connections to the other servers, by their ids.
#[derive(Default)]
pub struct Peers {
    /// First message on each connection; empty before the definition is known.
    hello: Vec<u8>,
    lost: Option<Lost>,
    peers: BTreeMap<Id, Peer>,
    connections: BTreeMap<ClientId, Id>,
}

/// Connection to a peer, and the messages for it.
#[derive(Debug)]
struct Peer {
    address: String,
    mailbox: Mailbox,
    connection: ClientId,
    backoff: Backoff,
    /// Failed attempts since the peer last welcomed this server.
    failures: u32,
    sending: Sending,
}

/// Messages that have left a mailbox.
#[derive(Debug, Default)]
struct Sending {
    /// Parts of the message being sent that are not serialised yet.
    parts: VecDeque<Outbound>,
    /// The message being sent, if one is.
    message: Option<Outgoing>,
    /// Number of messages that may not have arrived: those sent since the last ping, and, if its answer
    /// is still missing, those before the ping.
    written: u64,
    asked: Option<u64>,
}

impl Peers {
    /// Sets the hello by which peers know this server, and the callback for lost peers.
    pub fn introduce(&mut self, server: Id, definition: u64, lost: Lost) {
        self.hello = PeerMessage::Hello { server, definition }.to_bytes();
        self.lost = Some(lost);
    }

    /// Connects to the servers at these addresses, and disconnects from all others.
    pub fn renew(&mut self, addresses: &BTreeMap<Id, &str>, now: Instant, out: &mut Outbox) {
        let Peers { peers, connections, .. } = self;
        peers.retain(|id, peer| {
            let stays = addresses.get(id).is_some_and(|address| *address == peer.address);
            if !stays {
                connections.remove(&peer.connection);
                out.close(peer.connection);
            }
            stays
        });
        for (id, address) in addresses {
            peers.entry(*id).or_insert_with(|| {
                let connection = out.dial(address, now);
                connections.insert(connection, *id);
                Peer {
                    address: (*address).to_owned(),
                    mailbox: Mailbox::default(),
                    connection,
                    backoff: Backoff::default(),
                    failures: 0,
                    sending: Sending::default(),
                }
            });
        }
    }

    /// Puts a shard's message in a peer's mailbox. `tables` is called to serialise the tables of a snapshot.
    ///
    /// # Errors
    /// Returns the error of `tables`; nothing is put in.
    pub fn put<E>(
        &mut self,
        to: Id,
        shard: u32,
        message: Message,
        tables: impl FnOnce() -> Result<Vec<u8>, E>,
        out: &mut Outbox,
    ) -> Result<(), E> {
        let Some(peer) = self.peers.get_mut(&to) else { return Ok(()) };
        if peer.mailbox.put(shard, message, tables)? {
            out.when_room(peer.connection);
        }
        Ok(())
    }

    /// Returns whether a connection was dialled here.
    pub fn knows(&self, connection: ClientId) -> bool {
        self.connections.contains_key(&connection)
    }

    /// Introduces this server on a new connection.
    pub fn opened(&self, connection: ClientId, out: &mut Outbox) {
        out.send(connection, &self.hello);
    }

    /// Receives a peer's answer to the hello.
    ///
    /// # Errors
    /// If the answer is another server's, or refuses this server.
    pub fn received(&mut self, connection: ClientId, message: &[u8]) -> Result<(), Error> {
        // The service passes on only what comes on connections that were dialled here.
        let Some((id, peer)) = self.peer(connection) else { return Ok(()) };
        match FromServer::parse(message)? {
            FromServer::Welcome { server } if server == id => {
                (peer.failures, peer.sending) = (0, Sending::default());
                peer.backoff.reset();
                peer.mailbox.open();
                Ok(())
            }
            other => {
                let context =
                    format!("the server at {} is not {id}, it says {other:?}", peer.address);
                Err(Error::new(Kind::Corrupt, context))
            }
        }
    }

    /// Sends the next messages to a peer.
    pub fn has_room(&mut self, connection: ClientId, out: &mut Outbox) {
        let Some((_, peer)) = self.peer(connection) else { return };
        let Peer { sending, mailbox, .. } = peer;
        send_some(connection, out, |out| sending.send(mailbox, connection, out));
        sending.ask(connection, out);
    }

    /// Notes that a peer has handled all messages up to the last ping.
    pub fn answered(&mut self, connection: ClientId, out: &mut Outbox) {
        let Some((_, peer)) = self.peer(connection) else { return };
        peer.mailbox.left(peer.sending.asked.take().unwrap_or(0));
        peer.sending.ask(connection, out);
    }

    /// Dials a peer again whose connection has ended, or could not be opened.
    pub fn closed(&mut self, connection: ClientId, now: Instant, out: &mut Outbox) {
        // Connections of clients, and of peers that this server no longer needs, end here as well.
        let Some(id) = self.connections.remove(&connection) else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.mailbox.is_open() {
            if peer.failures % FAILURES == 0 {
                self.lost.iter().for_each(|lost| lost(id));
            }
            peer.failures += 1;
        }
        peer.mailbox.close();
        peer.connection = out.dial(&peer.address, now + peer.backoff.pause());
        self.connections.insert(peer.connection, id);
    }

    fn peer(&mut self, connection: ClientId) -> Option<(Id, &mut Peer)> {
        let id = *self.connections.get(&connection)?;
        Some((id, self.peers.get_mut(&id)?))
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("ids", &self.peers.keys()).finish_non_exhaustive()
    }
}

impl Sending {
    /// Sends the next frame of the message being sent, or of the next message in the mailbox. Returns
    /// the frame's length in bytes, or `None` if nothing is left.
    fn send(&mut self, mailbox: &mut Mailbox, to: ClientId, out: &mut Outbox) -> Option<usize> {
        if let Some(sent) = self.message.as_mut().and_then(|message| message.send(to, out)) {
            return Some(sent);
        }
        if self.parts.is_empty() {
            // A message may be as large as a shard.
            self.written += u64::from(self.message.take().is_some());
            self.parts = divided(mailbox.take()?);
        }
        let Outbound { shard, message, tables } = self.parts.pop_front()?;
        let bytes = PeerMessage::Message { shard, message, tables }.to_bytes();
        self.message.insert(Outgoing::new(Arc::new(bytes))).send(to, out)
    }

    /// Asks whether the messages so far have arrived, if no answer is awaited.
    fn ask(&mut self, connection: ClientId, out: &mut Outbox) {
        if self.asked.is_none() && self.written > 0 {
            self.asked = Some(std::mem::take(&mut self.written));
            out.ping(connection);
        }
    }
}

/// Divides a message into parts of bounded length, as far as its entries allow. Servers handle entries in the
/// same way in one message or in several.
fn divided(message: Outbound) -> VecDeque<Outbound> {
    let Outbound { shard, message, tables } = message;
    let Message::Forward { view, mut after, entries, committed } = message else {
        return VecDeque::from([Outbound { shard, message, tables }]);
    };
    let mut messages = VecDeque::new();
    let mut entries = &entries[..];
    while messages.is_empty() || !entries.is_empty() {
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry_bytes(entry);
            bytes <= ENTRIES_BYTES_MAX
        };
        let count = entries.iter().take_while(fits).count().max(1).min(entries.len());
        let (part, rest) = entries.split_at(count);
        let message = Message::Forward { view, after, entries: part.to_vec(), committed };
        messages.push_back(Outbound { shard, message, tables: Vec::new() });
        (after, entries) = (after + count as u64, rest);
    }
    messages
}

#[cfg(test)]
impl Peers {
    /// Opens the mailboxes of all peers, as if they had welcomed this server.
    pub fn open(&mut self) {
        let closed = self.peers.values_mut().filter(|peer| !peer.mailbox.is_open());
        closed.for_each(|peer| peer.mailbox.open());
    }

    /// Takes out the messages for a peer and counts them as arrived.
    pub fn drain(&mut self, to: Id) -> Vec<Outbound> {
        self.peers.get_mut(&to).map_or(Vec::new(), |peer| peer.mailbox.drain())
    }
}

#[cfg(test)]
mod tests;
