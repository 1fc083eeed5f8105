//! Nodes: state machines that answer clients and dial each other, and the actions that they ask of
//! their endpoint.

use std::time::Instant;

use crate::Error;
use crate::endpoint::{MESSAGE_BYTES_MAX, OUTPUT_BYTES_MAX, Resolve, system_addresses};
use crate::unauthenticated_peers::Refusals;

/// Number of a client of an endpoint, or of a connection that it dialled; no endpoint uses a number
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// State machine that answers clients and dials other nodes. It has no socket and no thread, and `now` is
/// an argument.
///
/// Every client is `opened` once, before its first message, and `closed` once, after its last,
/// whichever side ended the connection. Clients that are left when the endpoint is dropped are not
/// `closed`.
pub trait Node: Send + 'static {
    /// Called when a client, or a node that was dialled, has proven the token.
    fn opened(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// Called when a message of a client has come; it is never empty.
    ///
    /// # Errors
    /// If the message is faulty. The endpoint then closes the connection of this client, and no
    /// other.
    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error>;

    /// Called when a client's connection has ended; nothing more can be sent to it.
    fn closed(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// Called when a connection to a node that was dialled has ended, or could not be opened.
    fn hung_up(&mut self, client: ClientId, _why: &Error, now: Instant, out: &mut Outbox) {
        self.closed(client, now, out);
    }

    /// Called when few bytes for a client are unsent, if [`Outbox::when_room`] has asked for it.
    fn has_room(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// Called when a node that was dialled has handled all messages up to an [`Outbox::ping`].
    fn answered(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// Returns the time at which [`Node::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Called when the deadline has passed. A node that leaves its deadline in the past is called again
    /// at once.
    fn tick(&mut self, _now: Instant, _out: &mut Outbox) {}

    /// Returns the length of the longest message that a client may send, in bytes; asked once.
    ///
    /// If this many bytes that were sent to a client are still unread, no further message is taken from
    /// the client.
    fn message_bytes_max(&self) -> usize;

    /// Returns the length of the longest message of a node that was dialled, in bytes; asked once.
    fn dialled_message_bytes_max(&self) -> usize {
        self.message_bytes_max()
    }

    /// Returns the function that finds the addresses of nodes that are dialled; by default, the
    /// system's. Asked once.
    fn resolve(&self) -> Resolve {
        system_addresses
    }

    /// Returns the number of unread bytes at which a client is closed instead of being sent more; asked
    /// once.
    fn output_bytes_max(&self) -> usize {
        OUTPUT_BYTES_MAX
    }

    /// Returns whether a node that was dialled is asked for signs of life, and closed if it gives none
    /// for ten seconds. Asked when the connection is opened.
    fn keeps_alive(&self, _client: ClientId) -> bool {
        true
    }

    /// Returns whether answers wait while any link of this process has frames other than bulk to send,
    /// for at most a second. Asked once. It is meant for answers that are mostly needed later, such as
    /// rows of the next batches.
    fn gives_way(&self) -> bool {
        false
    }
}

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
    /// Close a connection. Messages that were sent before are first passed to the socket, as far as it
    /// takes them without blocking.
    Close(ClientId),
    /// Stop taking messages of a client; they stay in its socket.
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
    /// Call [`Node::has_room`] when little of a client's output is unsent.
    WhenRoom(ClientId),
    /// Call [`Node::answered`] when a dialled node has handled all messages that were sent before.
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

    /// Sends a message to a client, whether or not it has made a request. A client with more than
    /// [`Node::output_bytes_max`] unread bytes is closed instead.
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

    /// Stops taking messages of a client until [`Outbox::release`]. This keeps answers in order while
    /// one of them has to wait, or limits the client's rate. Further messages stay in the client's
    /// socket, except for a small part that the server reads ahead.
    pub fn hold(&mut self, client: ClientId) {
        self.actions.push(Action::Hold(client));
    }

    /// Ends [`Outbox::hold`].
    pub fn release(&mut self, client: ClientId) {
        self.actions.push(Action::Release(client));
    }

    /// Connects to the node at `address`, which has the same token. `address` is host:port, or any text
    /// that [`Node::resolve`] takes. The connection is not made before `at`, so that a pause of
    /// [`crate::Backoff`] can be added. The node is told when the connection is [open](Node::opened): the
    /// other node has then proven the token. It is also told when the connection has
    /// [ended](Node::hung_up), even if it was never open.
    pub fn dial(&mut self, address: &str, at: Instant) -> ClientId {
        let id = self.next_id();
        self.actions.push(Action::Dial { id, address: address.to_owned(), at });
        id
    }

    /// Calls [`Node::has_room`] once, as soon as few bytes for this client are unsent, so that a node
    /// can send more than a client may leave unread.
    pub fn when_room(&mut self, client: ClientId) {
        self.actions.push(Action::WhenRoom(client));
    }

    /// Calls [`Node::answered`] once, when the node that was dialled has handled all messages that were
    /// sent before this call.
    pub fn ping(&mut self, client: ClientId) {
        self.actions.push(Action::Ping(client));
    }

    /// Returns a number that no connection has had before.
    pub(crate) fn next_id(&mut self) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        id
    }

    /// Takes out the actions so far.
    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Adds to an error about a missing client the reasons for which the server may have refused it:
    /// the number of connections that did not prove the token, and the last refusal.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        self.refusals.explain(error)
    }
}
