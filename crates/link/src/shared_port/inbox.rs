//! A listener behind a shared port: a socket where connections with its key arrive as descriptors.
//!
//! The socket is a unix datagram socket, named after the key. Each datagram holds one connection, and
//! shows which process has passed it on. A connection from a process of another user is closed unread.
//! A process that has no descriptor left gets a datagram without its connection, and returns an error
//! that reports this.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketType, bind,
    recvmsg, send, sockopt,
};
use rustix::process::getuid;

use crate::shared_port::address::{Address, Key, WELCOME};
use crate::shared_port::router::Router;
use crate::shared_port::sockets::{Sockets, name, unix_socket};
use crate::tcp::cancel::Cancel;
use crate::{Error, forks};

/// A listener behind a shared port.
#[derive(Debug)]
pub struct Inbox {
    socket: OwnedFd,
    address: Address,
    /// Thread that passes connections on, to this listener and to others; it ends with this listener.
    _router: Router,
}

impl Inbox {
    /// Returns a listener behind the port at `address`, which it opens or joins; it tries until
    /// `deadline`.
    ///
    /// # Errors
    /// As [`super::Listener::shared`].
    pub fn open(
        address: SocketAddr,
        deadline: Instant,
        cancel: Option<&Cancel>,
    ) -> Result<Inbox, Error> {
        let key = Key::random()?;
        let bound = unix_socket(SocketType::DGRAM).and_then(|socket| {
            // Before the socket has its name, so that every datagram comes with the user that has sent it.
            sockopt::set_socket_passcred(&socket, true)?;
            bind(&socket, &name(&key.to_string())?)?;
            Ok(socket)
        });
        let socket = bound
            .map_err(|errno| Error::io(format_args!("cannot share {address}"), errno.into()))?;
        forks::record(&socket);
        let router = Router::start(Sockets::open(address, deadline, cancel)?)?;
        Ok(Inbox { socket, address: Address { socket: address, key: Some(key) }, _router: router })
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Takes a connection that was passed on, and welcomes it.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if no connection was passed on, [`ErrorKind::ConnectionAborted`] if the
    /// connection has ended or something other than a connection was passed on, or [`Errno::MFILE`] if
    /// this process has no descriptor left for it.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
        let (mut connection, mut is_own) = (None, false);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(mut received) => connection = received.next(),
                // The kernel fills in the sender's real user, not the effective one.
                RecvAncillaryMessage::ScmCredentials(sender) => is_own = sender.uid == getuid(),
                _ => {}
            }
        }
        // The kernel drops a connection for which this process has no descriptor; the other end tries again.
        if is_own && connection.is_none() && message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE.into());
        }
        let aborted = || io::Error::from(ErrorKind::ConnectionAborted);
        let stream = TcpStream::from(connection.filter(|_| is_own).ok_or_else(aborted)?);
        // This fails for a descriptor that is no TCP connection, too.
        let peer = stream.peer_addr().map_err(|_| aborted())?;
        let sent = send(&stream, &[WELCOME], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        sent.map_err(|_| aborted())?;
        Ok((stream, peer))
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
