//! The client's side of a connection to a node.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::duplex::Duplex;
use crate::endpoint::OUTPUT_BYTES_MAX;
use crate::endpoint::messages::Messages;
use crate::secure::{Handshake, Preamble, RECORD_BYTES_MAX, Role};
use crate::shared_port::address::{Address, Key, split_key};
use crate::tcp::wake::Wake;
use crate::{Backoff, Deadline, Error, Kind, Token, Waker};

/// Name of the coordinator of a job in errors.
pub(crate) const COORDINATOR: &str = "the coordinator";

/// The longest message of a node to a client, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A client of a [`super::Endpoint`]: encrypted messages in both directions, for one thread that waits
/// for messages, deadlines and wake-ups. The server may send without having been asked.
#[derive(Debug)]
pub struct Connection {
    name: &'static str,
    address: SocketAddr,
    duplex: Duplex,
    messages: Messages,
    limit: usize,
    wake: Wake,
}

/// The first message of a client. It proves the client's token at once, so the client is an
/// unauthenticated peer, with little time, only until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting<'a> {
    /// Name of the server in errors.
    pub name: &'static str,
    /// A message that the server answers.
    pub message: &'a [u8],
    /// The length of the longest message that the server sends, in bytes.
    pub limit: usize,
}

impl Connection {
    /// Connects to the coordinator at `address`, `host:port` or `host:port#key`; tries again until `timeout`.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if nothing answers in time; [`Kind::TokenMismatch`] or
    /// [`Kind::VersionMismatch`] if a coordinator with another token or version answers;
    /// [`Kind::Corrupt`] if something else answers.
    pub fn connect(address: &str, token: &Token, timeout: Duration) -> Result<Connection, Error> {
        Connection::connect_to(COORDINATOR, address, token, timeout)
    }

    /// Connects to the server at `address` as [`Connection::connect`] does. Errors call it `name`.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub fn connect_to(
        name: &'static str,
        address: &str,
        token: &Token,
        timeout: Duration,
    ) -> Result<Connection, Error> {
        let greeting = Greeting { name, message: &[], limit: MESSAGE_BYTES_MAX };
        Connection::greet(address, token, timeout, greeting)
    }

    /// Connects to the server at `address` as [`Connection::connect`] does, with a greeting.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub(crate) fn greet(
        address: &str,
        token: &Token,
        timeout: Duration,
        greeting: Greeting<'_>,
    ) -> Result<Connection, Error> {
        let deadline = Instant::now() + timeout;
        let (address, key) = split_key(address)?;
        let target = Target { address, key };
        let mut backoff = Backoff::default();
        loop {
            let error = match attempt(target, token, deadline, greeting) {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if !matches!(error.kind, Kind::Io | Kind::Timeout) {
                return Err(error);
            }
            let pause = backoff.pause();
            if Instant::now() + pause >= deadline {
                return Err(Error::new(
                    Kind::Unreachable,
                    format!(
                        "cannot reach {} at {address} after {:.0} s: {}",
                        greeting.name,
                        timeout.as_secs_f64().ceil(),
                        error.context
                    ),
                ));
            }
            thread::sleep(pause);
        }
    }

    /// Returns the address at which the server answered.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queues a message, and writes as much as the socket takes without blocking. The rest is
    /// written by later calls and while [`Connection::receive`] waits.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if the server has ended, [`Kind::Limit`] if it takes nothing while more
    /// than [`OUTPUT_BYTES_MAX`] bytes are queued.
    ///
    /// # Panics
    /// If the message is empty.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        assert!(!message.is_empty(), "a message of a client has at least one byte");
        let unsent = self.unsent_bytes();
        if unsent > OUTPUT_BYTES_MAX {
            let (name, address) = (self.name, self.address);
            let context =
                format!("{name} at {address} takes no messages: {unsent} bytes are queued");
            return Err(Error::new(Kind::Limit, context));
        }
        self.messages.seal(message, &mut self.duplex.output);
        let flushed = self.duplex.flush();
        flushed.map_err(|error| self.named(error))
    }

    /// Waits for a message: `None` when `timeout` has passed or a [`Waker`] was used.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if the server has ended; [`Kind::Corrupt`] or [`Kind::Limit`] if it sends
    /// bytes that no server would send. The connection has then ended.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, Error> {
        self.hear(Instant::now() + timeout, None).map_err(|error| self.named(error))
    }

    /// Waits for a message as [`Connection::receive`] does, but only until at most `unsent_max` bytes
    /// are queued, so that a client with much to send can continue.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_or_send(
        &mut self,
        timeout: Duration,
        unsent_max: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let heard = self.hear(Instant::now() + timeout, Some(unsent_max));
        heard.map_err(|error| self.named(error))
    }

    /// Returns the number of bytes that are queued, because the server has not taken them yet.
    pub fn unsent_bytes(&self) -> usize {
        self.duplex.output.len()
    }

    /// Returns a handle that ends [`Connection::receive`] from another thread.
    pub fn waker(&self) -> Waker {
        self.wake.waker()
    }

    fn hear(
        &mut self,
        deadline: Instant,
        unsent_max: Option<usize>,
    ) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let pumped = self.duplex.pump();
            // What came before the connection broke is still good.
            let message = self.messages.receive(&mut self.duplex.input, self.limit)?;
            if message.is_some() {
                return Ok(message);
            }
            pumped?;
            if unsent_max.is_some_and(|most| self.unsent_bytes() <= most) {
                return Ok(None);
            }
            if self.wake.take() || !self.duplex.wait(deadline, Some(&self.wake)) {
                return Ok(None);
            }
            self.wake.drain();
        }
    }

    fn named(&self, error: Error) -> Error {
        error.of_connection(format_args!("{} at {}", self.name, self.address))
    }
}

/// Where a server is reached.
#[derive(Clone, Copy)]
struct Target<'a> {
    address: &'a str,
    /// The key of the server behind a port that it shares.
    key: Option<Key>,
}

fn attempt(
    target: Target<'_>,
    token: &Token,
    deadline: Instant,
    greeting: Greeting<'_>,
) -> Result<Connection, Error> {
    let addresses: Vec<_> = target.address.to_socket_addrs().map_err(Error::broken)?.collect();
    let mut failure = Error::new(Kind::Io, "the name has no address");
    for address in addresses {
        let left =
            deadline.saturating_duration_since(Instant::now()).min(Deadline::Handshake.duration());
        let left = left.max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                let deadline = deadline.min(Instant::now() + Deadline::Handshake.duration());
                let address = Address { socket: address, key: target.key };
                let greeted = greeted(stream, address, token, deadline, greeting);
                return greeted.map_err(|error| match error.kind {
                    Kind::Io | Kind::Timeout => error,
                    _ => error.by(format_args!("{} at {}", greeting.name, address.socket)),
                });
            }
            Err(error) => failure = Error::broken(error),
        }
    }
    Err(failure)
}

fn greeted(
    stream: TcpStream,
    address: Address,
    token: &Token,
    deadline: Instant,
    greeting: Greeting<'_>,
) -> Result<Connection, Error> {
    let mut duplex = Duplex::new(stream, RECORD_BYTES_MAX)?;
    if let Some(key) = address.key {
        duplex.name(key, deadline)?;
    }
    let handshake = Handshake::new(Role::Initiator, token, Preamble { encrypt: true });
    let (session, _) = duplex.shake(handshake, deadline)?;
    let (messages, limit, wake) = (Messages::new(session), greeting.limit, Wake::new()?);
    let (name, address) = (greeting.name, address.socket);
    let mut connection = Connection { name, address, duplex, messages, limit, wake };
    connection.messages.seal(greeting.message, &mut connection.duplex.output);
    match connection.hear(deadline, None)? {
        Some(_) => Ok(connection),
        None => Err(Error::new(Kind::Timeout, "does not answer")),
    }
}
