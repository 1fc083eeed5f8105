//! Nodes that answer requests over authenticated connections, and dial each other.
//!
//! A [`Node`] is a state machine: messages and the time in, messages out. It may also [dial](Outbox::dial) other
//! nodes. An [`Endpoint`] runs one on a thread of its own behind the handshake that proves the job token, and
//! keeps clients apart: unauthenticated peers have few places and little time, a client that floods the endpoint
//! gets its share and no more, and one that does not read what it is sent is closed. The rendezvous
//! store is such a node. A [`Connection`] is the other end, for a thread that waits for replies.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use thinwire_link::endpoint::{ClientId, Connection, Endpoint, Node, Outbox};
//! use thinwire_link::{Error, Token};
//!
//! /// Sends every message back.
//! struct Echo;
//!
//! impl Node for Echo {
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
//! let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &token, Echo)?;
//! let (address, timeout) = (endpoint.address().to_string(), Duration::from_secs(20));
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
pub(crate) mod server_connection;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

pub use connection::{Connection, MESSAGE_BYTES_MAX};
pub use dial::{Resolve, system_addresses};
pub use outbox::{Action, Outbox};
pub use server_connection::OUTPUT_BYTES_MAX;

use crate::tcp::wake::Wake;
use crate::{Error, Kind, Token, Waker, forks};
use dispatcher::Dispatcher;
use event_loop::{Call, EventLoop};

/// Connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Address of an endpoint that nobody connects to.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A client of an endpoint, or a connection that it dialled; no endpoint gives a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// State machine that answers clients and dials other nodes. It has no socket and no thread, and `now` is
/// an argument.
///
/// Every client is `opened` once, before its first message, and `closed` once, after its last,
/// whoever ended the connection. Clients that are left when the endpoint is dropped are not `closed`.
pub trait Node: Send + 'static {
    /// A client, or a node that was dialled, has proven the token.
    fn opened(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// A message of a client has come; it is never empty.
    ///
    /// # Errors
    /// Whatever is wrong with the message: the endpoint closes this client and no other.
    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error>;

    /// A client's connection has ended; nothing more can be sent to it.
    fn closed(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// A connection to a node that was dialled has ended, or could not be opened.
    fn hung_up(&mut self, client: ClientId, _why: &Error, now: Instant, out: &mut Outbox) {
        self.closed(client, now, out);
    }

    /// Few bytes for a client are unsent; asked for by [`Outbox::when_room`].
    fn has_room(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// A node that was dialled has handled all messages up to an [`Outbox::ping`].
    fn answered(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {}

    /// Returns the time at which [`Node::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed. A node that leaves it in the past is called again at once.
    fn tick(&mut self, _now: Instant, _out: &mut Outbox) {}

    /// Returns the length of the longest message that a client may send, in bytes; asked once.
    ///
    /// No further message of a client is read while as many bytes wait to be read by it.
    fn message_bytes_max(&self) -> usize;

    /// Returns the length of the longest message of a node that was dialled, in bytes; asked once.
    fn dialled_message_bytes_max(&self) -> usize {
        self.message_bytes_max()
    }

    /// Returns what finds the addresses of nodes that are dialled: the system by default. Asked once.
    fn resolve(&self) -> Resolve {
        system_addresses
    }

    /// Returns the number of unread bytes of a client at which it is closed instead of sent more; asked once.
    fn output_bytes_max(&self) -> usize {
        OUTPUT_BYTES_MAX
    }

    /// Returns whether a node that was dialled is asked for signs of life, and closed if it gives none for ten
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

/// Thread that runs a node, which other processes reach or which reaches others; it ends when this is dropped.
pub struct Endpoint<N> {
    address: SocketAddr,
    /// None only while the server is dropped.
    calls: Option<Sender<Call<N>>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl<N: Node> Endpoint<N> {
    /// Listens on `address` (port 0 for any) for clients with the same token.
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`] if another process listens there.
    pub fn bind(address: SocketAddr, token: &Token, node: N) -> Result<Endpoint<N>, Error> {
        let listener = listen(address)?;
        let cannot = |error| Error::io(format_args!("cannot listen on {address}"), error);
        let address = listener.local_addr().map_err(cannot)?;
        Endpoint::start(Some((listener, address)), token, node)
    }

    /// Starts a node that nobody connects to: it dials others.
    ///
    /// # Errors
    /// If the system refuses a thread or sockets.
    pub fn dialling(token: &Token, node: N) -> Result<Endpoint<N>, Error> {
        Endpoint::start(None, token, node)
    }

    fn start(
        listener: Option<(TcpListener, SocketAddr)>,
        token: &Token,
        node: N,
    ) -> Result<Endpoint<N>, Error> {
        let wake = Wake::new()?;
        let waker = wake.waker();
        let (calls, called) = mpsc::channel();
        let (listener, address) = listener.unzip();
        let mut event_loop = EventLoop::new(Dispatcher::new(node, token), listener, wake, called);
        let thread = thread::Builder::new()
            .name("thinwire endpoint".to_owned())
            .spawn(move || event_loop.run())
            .map_err(|error| Error::io("starting the thread of an endpoint", error))?;
        let address = address.unwrap_or(NOWHERE);
        Ok(Endpoint { address, calls: Some(calls), waker, thread: Some(thread) })
    }

    /// Runs `call` on the node's thread, soon and in the order of calls.
    pub fn call(&self, call: impl FnOnce(&mut N, Instant, &mut Outbox) + Send + 'static) {
        // A node that has panicked runs nothing any more.
        let _ = self.calls.as_ref().map(|calls| calls.send(Box::new(call)));
        self.waker.wake();
    }
}

impl<N> Endpoint<N> {
    /// Returns a handle that makes the node's thread look at its deadline again.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns the address that the endpoint listens on; `0.0.0.0:0` if it only dials.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl<N> fmt::Debug for Endpoint<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<N> Drop for Endpoint<N> {
    fn drop(&mut self) {
        // The thread ends when nobody can call it any more.
        self.calls = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A non-blocking listener on `address`.
///
/// # Errors
/// [`Kind::AddressInUse`], or what else the operating system has against it.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        forks::record(&listener);
        listener.set_nonblocking(true)?;
        // Once more, for a longer queue.
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => Kind::AddressInUse,
            _ => Kind::Io,
        };
        Error::io(format_args!("cannot listen on {address}"), error).of(kind)
    })
}
