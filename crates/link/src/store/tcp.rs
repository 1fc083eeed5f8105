//! The store of ranks on several hosts: a [`Server`] inside rank 0 or the launcher, and one [`Client`] per
//! rank. Everything after the handshake is sealed.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::endpoint::connection::{COORDINATOR, Connection, Greeting};
use crate::store::message::{self, MESSAGE_BYTES_MAX, Request};
use crate::store::{self, KeyValueService, Store};
use crate::{Error, Kind, Token};

/// Delay of a reply that is permitted in addition to the requested time.
const REPLY_GRACE: Duration = Duration::from_secs(5);

/// A store that other processes reach; it ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    server: Endpoint<KeyValueService>,
}

impl Server {
    /// Listens on `address` (port 0 for any) for clients with the same token.
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`] if another process listens there.
    pub fn bind(address: SocketAddr, token: &Token) -> Result<Server, Error> {
        Server::bind_with(address, token, KeyValueService::new())
    }

    /// Listens as [`Server::bind`] does, with the values that `service` has already.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_with(
        address: SocketAddr,
        token: &Token,
        service: KeyValueService,
    ) -> Result<Server, Error> {
        Ok(Server { server: Endpoint::bind(address, token, service)? })
    }

    /// Listens at the port of `address`, which all processes of this user may share.
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`] if another program or user has the port.
    pub fn share(address: SocketAddr, token: &Token) -> Result<Server, Error> {
        Ok(Server { server: Endpoint::share(address, token, KeyValueService::new())? })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the address to connect to as a text: `host:port`, or `host:port#key` behind a shared port.
    pub fn shared_address(&self) -> String {
        self.server.shared_address()
    }
}

/// A client of a [`Server`], or of another node that contains a store.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    connection: Mutex<Connection>,
}

impl Client {
    /// Connects to the coordinator at `address`, `host:port`; tries again until `timeout`.
    ///
    /// # Errors
    /// [`Kind::Unreachable`] if nothing answers in time; [`Kind::TokenMismatch`] or
    /// [`Kind::VersionMismatch`] if a coordinator with another token or version answers;
    /// [`Kind::Corrupt`] if something else answers.
    pub fn connect(address: &str, token: &Token, timeout: Duration) -> Result<Client, Error> {
        let hello = Request::Get { key: "hello".to_owned(), wait: Duration::ZERO }.to_bytes();
        let greeting = Greeting { name: COORDINATOR, message: &hello, limit: MESSAGE_BYTES_MAX };
        let connection = Connection::greet(address, token, timeout, greeting)?;
        Ok(Client { address: connection.address(), connection: Mutex::new(connection) })
    }

    /// Returns the address at which the coordinator answered.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn ask(&self, request: &Request, wait: Duration) -> Result<Vec<u8>, Error> {
        let mut connection = self.connection.lock().expect("no holder panics");
        connection.send(&request.to_bytes())?;
        let reply = connection.receive(wait + REPLY_GRACE)?.ok_or_else(|| {
            let context = format!("the coordinator at {} does not answer", self.address);
            Error::new(Kind::Unreachable, context)
        })?;
        message::parse_reply(&reply)
    }
}

impl Store for Client {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        store::check(key, value)?;
        let (key, value) = (key.to_owned(), value.to_vec());
        self.ask(&Request::Set { key, value }, Duration::ZERO).map(|_| ())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        store::check(key, &[])?;
        let wait = timeout.min(message::WAIT_MAX);
        self.ask(&Request::Get { key: key.to_owned(), wait }, wait)
    }
}
