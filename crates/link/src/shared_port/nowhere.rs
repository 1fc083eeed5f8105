//! Shared ports on systems other than Linux, where connections cannot be passed to another process by name.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::shared_port::address::Address;
use crate::tcp::cancel::Cancel;
use crate::{Error, Kind};

/// A listener behind a shared port; there are none on this system.
#[derive(Debug)]
pub enum Inbox {}

impl Inbox {
    /// Fails, since there are no shared ports on this system.
    ///
    /// # Errors
    /// Always.
    pub fn open(
        address: SocketAddr,
        _deadline: Instant,
        _cancel: Option<&Cancel>,
    ) -> Result<Inbox, Error> {
        Err(Error::new(
            Kind::Invalid,
            format!(
                "port {} for all ranks of a host, expected none: a shared port needs Linux",
                address.port()
            ),
        ))
    }

    /// Accepts a connection; no listener on this system can call it.
    ///
    /// # Errors
    /// Never.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match *self {}
    }

    /// Returns the address to connect to; no listener on this system has one.
    pub fn address(&self) -> Address {
        match *self {}
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}
