//! Connections of processes to a node.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::endpoint::OUTPUT_BYTES_MAX;
use crate::endpoint::client_connection::{COORDINATOR, ClientConnection, Greeting};
use crate::tcp::wake::Wake;
use crate::{Error, Kind, Token, Waker};

/// The longest message of a node to a client, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A client of a [`super::Endpoint`]: encrypted messages in both directions, for one thread that waits
/// for messages, deadlines and wake-ups. The server may send without having been asked.
#[derive(Debug)]
pub struct Connection {
    client_connection: ClientConnection,
    wake: Wake,
}

impl Connection {
    /// Connects to the coordinator at `address`, `host:port`; tries again until `timeout`.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if nothing answers there in time, [`Kind::TokenMismatch`],
    /// [`Kind::VersionMismatch`], or [`Kind::Corrupt`] if something else does.
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
        let client_connection = ClientConnection::connect(address, token, timeout, greeting)?;
        Ok(Connection { client_connection, wake: Wake::new()? })
    }

    /// Returns the address at which the server answered.
    pub fn address(&self) -> SocketAddr {
        self.client_connection.address()
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
        let unsent = self.client_connection.unsent_bytes();
        if unsent > OUTPUT_BYTES_MAX {
            let context = {
                let (name, address) = (self.client_connection.name(), self.address());
                format!("{name} at {address} takes no messages: {unsent} bytes are queued")
            };
            return Err(Error::new(Kind::Limit, context));
        }
        self.client_connection.send(message)
    }

    /// Waits for a message: `None` when `timeout` has passed or a [`Waker`] was used.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if the server has ended, [`Kind::Corrupt`] or [`Kind::Limit`] if it
    /// sends what no server does. The connection is then over.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, Error> {
        self.client_connection.receive(Instant::now() + timeout, Some(&self.wake))
    }

    /// Waits for a message as [`Connection::receive`] does, but no longer than until at most `unsent_max`
    /// bytes are queued: whoever sends much continues then.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_or_send(
        &mut self,
        timeout: Duration,
        unsent_max: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let deadline = Instant::now() + timeout;
        self.client_connection.receive_or_send(deadline, Some(&self.wake), unsent_max)
    }

    /// Returns the number of bytes that are queued, because the server has not taken them yet.
    pub fn unsent_bytes(&self) -> usize {
        self.client_connection.unsent_bytes()
    }

    /// Returns a handle that ends [`Connection::receive`] from another thread.
    pub fn waker(&self) -> Waker {
        self.wake.waker()
    }
}
