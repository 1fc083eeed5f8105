//! Servers that answer requests over authenticated connections, and connect to each other.
//!
//! A [`Service`] is a state machine: messages of clients and the time in, messages to clients out. It may also
//! [dial](Outbox::dial) other services. A [`Server`] runs one on a thread of its own behind the handshake that proves the job token, and
//! keeps clients apart: unauthenticated peers have few places and little time, a client that floods the server
//! gets its share and no more, and one that does not read what it is sent is closed. The rendezvous
//! store is such a service. A [`Connection`] is the other end.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use thinwire_link::service::{ClientId, Connection, Outbox, Server, Service};
//! use thinwire_link::{Error, Token};
//!
//! /// Sends every message back.
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn received(
//!         &mut self, client: ClientId, message: &[u8], _now: Instant, out: &mut Outbox,
//!     ) -> Result<(), Error> {
//!         out.send(client, message);
//!         Ok(())
//!     }
//!     fn message_bytes_max(&self) -> usize {
//!         1000
//!     }
//! }
//!
//! let token = Token::new("a secret");
//! let server = Server::bind("127.0.0.1:0".parse().unwrap(), &token, Echo)?;
//! let (address, timeout) = (server.address().to_string(), Duration::from_secs(20));
//! let mut connection = Connection::connect(&address, &token, timeout)?;
//! connection.send(b"hello")?;
//! assert_eq!(connection.receive(timeout)?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Error>(())
//! ```

pub(crate) mod client_connection;
mod connection;
mod dial;
pub(crate) mod dispatcher;
mod event_loop;
mod keep_alive;
pub(crate) mod messages;
mod outbox;
mod server;
pub(crate) mod server_connection;

use std::time::Instant;

pub use connection::{Connection, MESSAGE_BYTES_MAX};
pub use dial::{Resolve, system_addresses};
pub use outbox::{Action, Outbox};
pub use server::Server;
pub(crate) use server::listen;
pub use server_connection::OUTPUT_BYTES_MAX;

use crate::Error;

/// A client of a server, or a connection that it dialled; no server gives a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// State machine that answers the clients of a server. It has no socket and no thread, and `now` is
/// an argument.
///
/// Every client is `opened` once, before its first message, and `closed` once, after its last,
/// whoever ended the connection. Clients that are left when the server is dropped are not `closed`.
pub trait Service: Send + 'static {
    /// A client, or a service that was dialled, has proven the token.
    fn opened(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// A message of a client has come; it is never empty.
    ///
    /// # Errors
    /// Whatever is wrong with the message: the server closes this client and no other.
    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error>;

    /// A client's connection has ended; nothing more can be sent to it.
    fn closed(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// A connection to a service that was dialled has ended, or could not be opened.
    fn hung_up(&mut self, client: ClientId, _why: &Error, now: Instant, out: &mut Outbox) {
        self.closed(client, now, out);
    }

    /// Few bytes for a client are unsent; asked for by [`Outbox::when_room`].
    fn has_room(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// A service that was dialled has handled all messages up to an [`Outbox::ping`].
    fn answered(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// Returns the time at which [`Service::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed. A service that leaves it in the past is called again at once.
    fn tick(&mut self, _now: Instant, _out: &mut Outbox) {}

    /// Returns the length of the longest message that a client may send, in bytes; asked once.
    ///
    /// No further message of a client is read while as many bytes wait to be read by it.
    fn message_bytes_max(&self) -> usize;

    /// Returns the length of the longest message of a service that was dialled, in bytes; asked once.
    fn dialled_message_bytes_max(&self) -> usize {
        self.message_bytes_max()
    }

    /// Returns what finds the addresses of services that are dialled: the system by default. Asked once.
    fn resolve(&self) -> Resolve {
        system_addresses
    }

    /// Returns the number of unread bytes of a client at which it is closed instead of sent more; asked once.
    fn output_bytes_max(&self) -> usize {
        OUTPUT_BYTES_MAX
    }

    /// Returns whether a service that was dialled is asked for signs of life, and closed if it gives none for ten
    /// seconds. Asked when it is opened.
    fn keeps_alive(&self, _client: ClientId) -> bool {
        true
    }

    /// Returns whether answers give way to the frames, but for bulk, of all links of this process; each
    /// waits for a second at most. Asked once. For answers that are mostly needed later, such as rows
    /// of the next batches.
    fn gives_way(&self) -> bool {
        false
    }
}
