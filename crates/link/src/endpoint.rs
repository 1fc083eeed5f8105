//! Nodes that answer requests over authenticated connections, and dial each other.
//!
//! A [`Node`] is a state machine: it receives messages and the time, and sends messages. It may also
//! [dial](Outbox::dial) other nodes. An [`Endpoint`] runs a node on a thread of its own, behind the
//! handshake that proves the job token. It also protects clients from each other: unauthenticated peers
//! have few places and little time, a client that floods the endpoint gets no more than its share, and
//! one that does not read its messages is closed. The rendezvous store is such a node. A [`Connection`]
//! is the other end, for a thread that waits for replies.
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

pub(crate) mod connection;
mod dial;
pub(crate) mod dispatcher;
mod event_loop;
mod keep_alive;
pub(crate) mod messages;
mod node;
pub(crate) mod server_connection;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

pub use connection::{Connection, MESSAGE_BYTES_MAX};
pub use dial::{Resolve, system_addresses};
pub use node::{Action, ClientId, Node, Outbox};
pub use server_connection::OUTPUT_BYTES_MAX;

use crate::shared_port::Listener;
use crate::shared_port::address::Address;
use crate::tcp::wake::Wake;
use crate::{Deadline, Error, Token, Waker};
use dispatcher::Dispatcher;
use event_loop::{Call, EventLoop};

/// Address of an endpoint to which no client connects.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Thread that runs a node. Other processes reach the node, or it reaches them; the thread ends when
/// the endpoint is dropped.
pub struct Endpoint<N> {
    address: Address,
    /// `None` only while the server is dropped.
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
        Endpoint::start(Some(Listener::own(address)?), token, node)
    }

    /// Listens at the port of `address`, which all processes of this user may share; see
    /// [`Endpoint::shared_address`].
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`] if another program or user has the port.
    pub fn share(address: SocketAddr, token: &Token, node: N) -> Result<Endpoint<N>, Error> {
        let deadline = Instant::now() + Deadline::Reply.duration();
        Endpoint::start(Some(Listener::shared(address, deadline, None)?), token, node)
    }

    /// Starts a node that only dials others, and accepts no connections.
    ///
    /// # Errors
    /// If the system refuses a thread or sockets.
    pub fn dialling(token: &Token, node: N) -> Result<Endpoint<N>, Error> {
        Endpoint::start(None, token, node)
    }

    fn start(listener: Option<Listener>, token: &Token, node: N) -> Result<Endpoint<N>, Error> {
        let wake = Wake::new()?;
        let waker = wake.waker();
        let (calls, called) = mpsc::channel();
        let address = listener.as_ref().map(Listener::address).transpose()?;
        let mut event_loop = EventLoop::new(Dispatcher::new(node, token), listener, wake, called);
        let thread = thread::Builder::new()
            .name("thinwire endpoint".to_owned())
            .spawn(move || event_loop.run())
            .map_err(|error| Error::io("starting the thread of an endpoint", error))?;
        let address = address.unwrap_or(NOWHERE.into());
        Ok(Endpoint { address, calls: Some(calls), waker, thread: Some(thread) })
    }

    /// Runs `call` on the node's thread as soon as possible. Calls run in order.
    pub fn call(&self, call: impl FnOnce(&mut N, Instant, &mut Outbox) + Send + 'static) {
        // A node that has panicked runs nothing any more.
        let _ = self.calls.as_ref().map(|calls| calls.send(Box::new(call)));
        self.waker.wake();
    }
}

impl<N> Endpoint<N> {
    /// Returns a handle that makes the node's thread ask for the node's deadline again.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns the address that the endpoint listens on; `0.0.0.0:0` if it only dials.
    pub fn address(&self) -> SocketAddr {
        self.address.socket
    }

    /// Returns the address to connect to as a text: `host:port`, or `host:port#key` behind a shared port.
    pub fn shared_address(&self) -> String {
        self.address.to_string()
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
