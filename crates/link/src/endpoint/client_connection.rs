//! The client's side of a connection to a server.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use crate::duplex::Duplex;
use crate::endpoint::messages::Messages;
use crate::secure::{Handshake, Preamble, RECORD_BYTES_MAX, Role};
use crate::shared_port::address::{Address, Key, split_key};
use crate::tcp::wake::Wake;
use crate::{Backoff, Deadline, Error, Kind, Token};

/// The coordinator of a job, as errors name it.
pub const COORDINATOR: &str = "the coordinator";

/// Messages to and from the server at an address.
#[derive(Debug)]
pub struct ClientConnection {
    name: &'static str,
    address: SocketAddr,
    duplex: Duplex,
    messages: Messages,
    limit: usize,
}

/// The first words of a client, which prove its token at once: until then it is an unauthenticated peer with
/// little time.
#[derive(Clone, Copy, Debug)]
pub struct Greeting<'a> {
    /// The server, as errors name it.
    pub name: &'static str,
    /// A message that the server answers with one.
    pub message: &'a [u8],
    /// The length of the longest message that the server sends, in bytes.
    pub limit: usize,
}

impl ClientConnection {
    /// Connects to the server at `address`, `host:port` or `host:port#key`; tries again until `timeout`.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if nothing answers there in time, [`Kind::TokenMismatch`],
    /// [`Kind::VersionMismatch`], or [`Kind::Corrupt`] if something else does.
    pub fn connect(
        address: &str,
        token: &Token,
        timeout: Duration,
        greeting: Greeting<'_>,
    ) -> Result<ClientConnection, Error> {
        let deadline = Instant::now() + timeout;
        let (address, key) = split_key(address)?;
        let target = Target { address, key };
        let mut backoff = Backoff::default();
        loop {
            let error = match attempt(target, token, deadline, greeting) {
                Ok(client_connection) => return Ok(client_connection),
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

    /// Returns the server, as errors name it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of bytes that the server has not taken yet.
    pub fn unsent_bytes(&self) -> usize {
        self.duplex.output.len()
    }

    /// Queues a message, and writes as much as the socket takes without blocking.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if the connection is broken.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.messages.seal(message, &mut self.duplex.output);
        let flushed = self.duplex.flush();
        flushed.map_err(|error| self.named(error))
    }

    /// Waits for a message until `deadline`, or until somebody uses a waker of `wake`.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if the server has ended, [`Kind::Corrupt`] or [`Kind::Limit`] if it
    /// sends what no server does.
    pub fn receive(
        &mut self,
        deadline: Instant,
        wake: Option<&Wake>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.hear(deadline, wake, None).map_err(|error| self.named(error))
    }

    /// Waits as [`ClientConnection::receive`] does, but no longer than until at most `unsent_max` bytes are
    /// unsent.
    ///
    /// # Errors
    /// As [`ClientConnection::receive`].
    pub fn receive_or_send(
        &mut self,
        deadline: Instant,
        wake: Option<&Wake>,
        unsent_max: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.hear(deadline, wake, Some(unsent_max)).map_err(|error| self.named(error))
    }

    fn hear(
        &mut self,
        deadline: Instant,
        wake: Option<&Wake>,
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
            if wake.is_some_and(Wake::take) || !self.duplex.wait(deadline, wake) {
                return Ok(None);
            }
            wake.into_iter().for_each(Wake::drain);
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
) -> Result<ClientConnection, Error> {
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
                let greeted = greet(stream, address, token, deadline, greeting);
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

fn greet(
    stream: TcpStream,
    address: Address,
    token: &Token,
    deadline: Instant,
    greeting: Greeting<'_>,
) -> Result<ClientConnection, Error> {
    let mut duplex = Duplex::new(stream, RECORD_BYTES_MAX)?;
    if let Some(key) = address.key {
        duplex.name(key, deadline)?;
    }
    let handshake = Handshake::new(Role::Initiator, token, Preamble { encrypt: true });
    let (session, _) = duplex.shake(handshake, deadline)?;
    let (messages, limit) = (Messages::new(session), greeting.limit);
    let (name, address) = (greeting.name, address.socket);
    let mut client_connection = ClientConnection { name, address, duplex, messages, limit };
    client_connection.messages.seal(greeting.message, &mut client_connection.duplex.output);
    match client_connection.hear(deadline, None, None)? {
        Some(_) => Ok(client_connection),
        None => Err(Error::new(Kind::Timeout, "does not answer")),
    }
}
