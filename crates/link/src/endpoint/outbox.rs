//! Requests of a node to its endpoint while it handles an event.

use std::time::Instant;

use crate::Error;
use crate::endpoint::{ClientId, MESSAGE_BYTES_MAX};
use crate::unauthenticated_peers::Refusals;

/// One request of a node to its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send {
        /// The receiver.
        to: ClientId,
        /// The message.
        message: Vec<u8>,
    },
    /// Close a connection, after what was sent on it before has been passed to the socket as far as
    /// that takes it at once.
    Close(ClientId),
    /// Leave further messages of a client where they are.
    Hold(ClientId),
    /// Take messages of a client again.
    Release(ClientId),
    /// Connect to another node.
    Dial {
        /// The connection.
        id: ClientId,
        /// Address of the other node, as [`Outbox::dial`] takes it.
        address: String,
        /// The earliest time at which to connect.
        at: Instant,
    },
    /// Call [`super::Node::has_room`] when little of a client's output is unsent.
    WhenRoom(ClientId),
    /// Call [`super::Node::answered`] when a dialled node has handled all messages up to here.
    Ping(ClientId),
}

/// Actions of a node, which its endpoint carries out in order after each event. Actions for a
/// client that is gone are dropped.
#[derive(Debug, Default)]
pub struct Outbox {
    actions: Vec<Action>,
    pub(crate) refusals: Refusals,
    /// Number of the next connection.
    next: u64,
}

impl Outbox {
    /// Returns an empty outbox, for nodes that are tested without an endpoint.
    pub fn new() -> Outbox {
        Outbox::default()
    }

    /// Sends a message to a client, whether or not it has asked for one. A client with more than
    /// [`super::Node::output_bytes_max`] unread bytes is closed instead.
    ///
    /// # Panics
    /// If the message is longer than [`MESSAGE_BYTES_MAX`].
    pub fn send(&mut self, to: ClientId, message: &[u8]) {
        let length = message.len();
        assert!(length <= MESSAGE_BYTES_MAX, "message of {length} bytes to a client");
        self.actions.push(Action::Send { to, message: message.to_vec() });
    }

    /// Closes a client's connection.
    pub fn close(&mut self, client: ClientId) {
        self.actions.push(Action::Close(client));
    }

    /// Takes no further messages of a client until [`Outbox::release`], so that they are answered in
    /// their order though one answer has to wait, or come no faster than they should. What it sends
    /// meanwhile stays in its socket, once the server has read ahead as much as it does.
    pub fn hold(&mut self, client: ClientId) {
        self.actions.push(Action::Hold(client));
    }

    /// Ends [`Outbox::hold`].
    pub fn release(&mut self, client: ClientId) {
        self.actions.push(Action::Release(client));
    }

    /// Connects to the node at `address`, host:port or what [`super::Node::resolve`] takes, which has the same token; not before `at`, so that a pause
    /// of [`crate::Backoff`] can be added. The connection is like a client's from then on: it is
    /// [opened](super::Node::opened) once the other node has proven the token, and
    /// [hung up](super::Node::hung_up) in any case, also if it was never opened.
    pub fn dial(&mut self, address: &str, at: Instant) -> ClientId {
        let id = self.next_id();
        self.actions.push(Action::Dial { id, address: address.to_owned(), at });
        id
    }

    /// Calls [`super::Node::has_room`] once, as soon as few bytes for this client are unsent: for more messages
    /// than a client may leave unread.
    pub fn when_room(&mut self, client: ClientId) {
        self.actions.push(Action::WhenRoom(client));
    }

    /// Calls [`super::Node::answered`] once, when the node that was dialled has handled all messages up to
    /// here.
    pub fn ping(&mut self, client: ClientId) {
        self.actions.push(Action::Ping(client));
    }

    /// Returns a number that no connection has had.
    pub(crate) fn next_id(&mut self) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        id
    }

    /// Takes out the actions so far.
    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Adds to an error about a client that did not come why the server may have kept it out:
    /// connections that did not prove the token, and the last one that was refused.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        self.refusals.explain(error)
    }
}
