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
        let server = service::Server::bind(address, token, KeyValueService::new())?;
        Ok(Server { server })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }
}
