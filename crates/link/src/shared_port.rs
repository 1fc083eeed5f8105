//! One TCP port for all listeners of a host, for firewalls and containers that open only one port.
//!
//! Each listener has a random [`Key`](address::Key), which it publishes with its address. The connecting side sends
//! the key in a [preface](address::PREFACE_BYTES) and waits for one byte before the handshake begins. All processes
//! behind a port hold the same listening socket. In each of them a thread ([`router`]) accepts connections, reads
//! the preface, and passes the connection to the listener with that key. So no process depends on another one: a
//! process that is killed or stopped loses only the connections whose preface it was reading, and those are tried
//! again.
//!
//! Law: a connection arrives at the listener whose key it has sent, or is refused.

pub mod address;
#[cfg(target_os = "linux")]
mod inbox;
#[cfg(not(target_os = "linux"))]
mod nowhere;
#[cfg(target_os = "linux")]
mod router;
#[cfg(target_os = "linux")]
mod sockets;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::Error;
use crate::duplex::listen;
use crate::tcp::cancel::Cancel;
use address::Address;

#[cfg(target_os = "linux")]
use inbox::Inbox;
#[cfg(not(target_os = "linux"))]
use nowhere::Inbox;

/// Source of incoming connections: a port of its own, or a shared one.
#[derive(Debug)]
pub enum Listener {
    /// A port of its own.
    Own(TcpListener),
    /// A port that listeners of this host share.
    Shared(Inbox),
}

impl Listener {
    /// Listens on a port of its own; port 0 for any that is free.
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`], or any other error of the operating system.
    pub fn own(address: SocketAddr) -> Result<Listener, Error> {
        listen(address).map(Listener::Own)
    }

    /// Listens at a port that all processes of this user may share. Tries until `deadline` at most, or
    /// until cancelled.
    ///
    /// # Errors
    /// [`crate::Kind::AddressInUse`] if another program or user has the port,
    /// [`crate::Kind::Cancelled`], or any other error of the operating system.
    pub fn shared(
        address: SocketAddr,
        deadline: Instant,
        cancel: Option<&Cancel>,
    ) -> Result<Listener, Error> {
        Inbox::open(address, deadline, cancel).map(Listener::Shared)
    }

    /// Accepts a connection without blocking.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if no connection waits, [`io::ErrorKind::ConnectionAborted`] if it has
    /// ended already, or any other error of the operating system.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Listener::Own(listener) => listener.accept(),
            Listener::Shared(inbox) => inbox.accept(),
        }
    }

    /// Returns the address to connect to.
    ///
    /// # Errors
    /// If the operating system does not know it.
    pub fn address(&self) -> Result<Address, Error> {
        match self {
            Listener::Own(listener) => {
                let address = listener.local_addr();
                let address =
                    address.map_err(|error| Error::io("cannot tell the own address", error))?;
                Ok(address.into())
            }
            Listener::Shared(inbox) => Ok(inbox.address()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Own(listener) => listener.as_fd(),
            Listener::Shared(inbox) => inbox.as_fd(),
        }
    }
}
