//! The server of a store.

use std::net::SocketAddr;

use crate::store::KeyValueService;
use crate::{Error, Token, service};

/// A store that other processes reach; it ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    server: service::Server<KeyValueService>,
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
    /// Those of `bind`.
    pub fn bind_with(
        address: SocketAddr,
        token: &Token,
        service: KeyValueService,
    ) -> Result<Server, Error> {
        Ok(Server { server: service::Server::bind(address, token, service)? })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }
}
