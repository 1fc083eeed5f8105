//! The sockets that all processes behind a port hold, and the way in which a process gets them.
//!
//! A process first binds an abstract unix socket with the port's name, and then the port. So the operating
//! system decides which process is first. This process, and later every other one that has both sockets,
//! sends them to each process of its user that connects to the unix socket. So both stay open as long as
//! any process has them. Abstract names belong to a network namespace, as ports do.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::process::{Uid, geteuid};
use thinwire_wire::VERSION;

use crate::duplex::{self, timespec};
use crate::tcp::cancel::{CANCEL_EVERY, Cancel};
use crate::unauthenticated_peers::ACCEPTS_MAX;
use crate::{Backoff, Deadline, Error, Kind, forks};

/// Time within which the system closes the port of a process that was killed.
const CLOSING: Duration = Duration::from_millis(300);
/// Time that one of the processes behind a port has to send the sockets, before another one is asked.
const ANSWER: Duration = Duration::from_secs(1);
/// The most processes that may wait for the sockets.
const BACKLOG: i32 = 1024;
/// Descriptors that are sent: the port and the unix socket.
const DESCRIPTORS: usize = 2;

/// The sockets behind a port.
#[derive(Debug)]
pub struct Sockets {
    /// The listening socket of the port.
    pub tcp: TcpListener,
    /// The unix socket, over which other processes of this user receive copies of both sockets.
    pub unix: OwnedFd,
}

impl Sockets {
    /// Opens the port, or joins the processes that have opened it.
    ///
    /// # Errors
    /// [`Kind::AddressInUse`] if the port belongs to another program or user, or the processes behind it do not
    /// answer until `deadline`; [`Kind::Cancelled`].
    pub fn open(
        address: SocketAddr,
        deadline: Instant,
        cancel: Option<&Cancel>,
    ) -> Result<Sockets, Error> {
        let cannot = |errno: Errno| Error::io(format_args!("cannot share {address}"), errno.into());
        let until = deadline.min(Instant::now() + Deadline::Reply.duration());
        let mut backoff = Backoff::default();
        loop {
            let socket = unix_socket(SocketType::STREAM).map_err(cannot)?;
            match bind(&socket, &name(&address.to_string()).map_err(cannot)?) {
                Ok(()) => return Sockets::first(socket, address),
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(cannot(errno)),
            }
            match Sockets::join(address, until, cancel) {
                Ok(sockets) => return Ok(sockets),
                Err(error) if error.kind != Kind::Io => return Err(error),
                // The last process has just ended, or the first one does not listen yet.
                Err(_) if Instant::now() < until => {
                    thread::sleep(backoff.pause().min(longest_wait(cancel)))
                }
                Err(error) => {
                    let seconds = Deadline::Reply.duration().as_secs();
                    let context = format!(
                        "{} is held by processes that do not share it within {seconds} s: {}",
                        in_words(address),
                        error.context
                    );
                    return Err(Error::new(Kind::AddressInUse, context));
                }
            }
        }
    }

    fn first(unix: OwnedFd, address: SocketAddr) -> Result<Sockets, Error> {
        let until = Instant::now() + CLOSING;
        let mut backoff = Backoff::default();
        let tcp = loop {
            match duplex::listen(address) {
                Ok(tcp) => break tcp,
                // The last process behind the port may have been killed just now.
                Err(error) if error.kind == Kind::AddressInUse && Instant::now() < until => {
                    thread::sleep(backoff.pause());
                }
                Err(error) if error.kind == Kind::AddressInUse => {
                    let context = format!(
                        "{} is in use by another program, expected a port that is free or shared by thinwire",
                        in_words(address)
                    );
                    return Err(Error::new(Kind::AddressInUse, context));
                }
                Err(error) => return Err(error),
            }
        };
        // Not before the port is bound, since a process that connects is sent it.
        listen(&unix, BACKLOG)
            .map_err(|errno| Error::io(format_args!("cannot share {address}"), errno.into()))?;
        forks::record(&unix);
        Ok(Sockets { tcp, unix })
    }

    /// Gets the sockets from a process that has them. An error of [`Kind::Io`] may be over soon.
    fn join(
        address: SocketAddr,
        until: Instant,
        cancel: Option<&Cancel>,
    ) -> Result<Sockets, Error> {
        let socket = unix_socket(SocketType::STREAM).map_err(broken)?;
        let name = name(&address.to_string()).map_err(broken)?;
        connect(&socket, &name).map_err(broken)?;
        let [theirs, mine] = [user(&socket).map_err(broken)?, geteuid()];
        if theirs != mine {
            let (port, theirs, mine) = (in_words(address), theirs.as_raw(), mine.as_raw());
            let context =
                format!("{port} is held by user {theirs}, this process is of user {mine}");
            return Err(Error::new(Kind::AddressInUse, context));
        }
        let until = until.min(Instant::now() + ANSWER);
        loop {
            if cancel.is_some_and(Cancel::is_cancelled) {
                let context = format!("cancelled while joining {}", in_words(address));
                return Err(Error::new(Kind::Cancelled, context));
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&socket, PollFlags::IN)];
            let wait = left.min(longest_wait(cancel));
            if poll(&mut fds, Some(&timespec(wait))).map_err(broken)? > 0 || left.is_zero() {
                break;
            }
        }
        // If the time is over, nothing has come, and this fails.
        let sockets = take(&socket).map_err(broken)?;
        let [tcp, unix] = <[OwnedFd; DESCRIPTORS]>::try_from(sockets)
            .map_err(|_| Error::new(Kind::Io, "the sockets were not sent"))?;
        let tcp = TcpListener::from(tcp);
        if !tcp.local_addr().is_ok_and(|found| found == address) {
            return Err(Error::new(Kind::Io, "another socket was sent"));
        }
        forks::record(&tcp);
        forks::record(&unix);
        Ok(Sockets { tcp, unix })
    }

    /// Sends both sockets to the processes of this user that have asked for them.
    ///
    /// # Errors
    /// If the system has no descriptor for their connections.
    pub fn share(&self) -> rustix::io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_MAX {
            let process = match accept_with(&self.unix, flags) {
                Ok(process) => process,
                // Another process may have accepted it.
                Err(Errno::AGAIN | Errno::CONNABORTED) => break,
                Err(errno) => return Err(errno),
            };
            if user(&process).is_ok_and(|user| user == geteuid()) {
                // A process that gets nothing asks again.
                let _ = self.give(&process);
            }
        }
        Ok(())
    }

    fn give(&self, process: &OwnedFd) -> rustix::io::Result<usize> {
        let descriptors = [self.tcp.as_fd(), self.unix.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(process, &[IoSlice::new(&[0])], &mut control, flags)
    }
}

/// Returns a unix socket that does not block.
pub fn unix_socket(sort: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, sort, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Returns the abstract name of a port or of a listener behind one. It contains the version, since
/// versions differ in their prefaces.
pub fn name(of: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("thinwire-port-{VERSION}-{of}").as_bytes())
}

/// Returns the user of the process at the other end.
fn user(socket: &OwnedFd) -> rustix::io::Result<Uid> {
    sockopt::socket_peercred(socket).map(|other| other.uid)
}

fn take(socket: &OwnedFd) -> rustix::io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    // The kernel drops a socket for which this process has no descriptor.
    if descriptors.len() < DESCRIPTORS && message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    Ok(descriptors)
}

/// Returns the longest wait between two checks of the cancel handle.
fn longest_wait(cancel: Option<&Cancel>) -> Duration {
    cancel.map_or(Duration::MAX, |_| CANCEL_EVERY)
}

fn in_words(address: SocketAddr) -> String {
    format!("port {} of {}", address.port(), address.ip())
}

fn broken(errno: Errno) -> Error {
    Error::broken(io::Error::from(errno))
}
