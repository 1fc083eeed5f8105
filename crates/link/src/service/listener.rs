//! Sockets that accept connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use crate::{Error, Kind, forks};

/// Connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// A non-blocking listener on `address`.
///
/// # Errors
/// [`Kind::AddressInUse`], or what else the operating system has against it.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
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
