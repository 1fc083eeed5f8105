//! The thread that accepts connections at a shared port and passes each to the listener that it names.
//!
//! Every listener behind the port has such a thread, and the thread that accepts a connection passes
//! it on. Connections that have not sent their preface are unauthenticated peers, with few [`Places`]
//! and little time. A connection whose listener accepts no more at present keeps its place and waits.

use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, send, sendmsg_addr,
};

use crate::duplex::{set_up, timespec};
use crate::shared_port::address::{Key, PREFACE_BYTES, REFUSED};
use crate::shared_port::sockets::{Sockets, name, unix_socket};
use crate::unauthenticated_peers::{ACCEPTS_MAX, Places, REFUSED_PAUSE, UnauthenticatedPeer};
use crate::{Error, forks};

/// The most connections that have not reached their listeners.
const PLACES: Places = Places { total: 256, per_address: 64 };
/// Pause before a listener that accepts no more is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Handle of the thread. When it is dropped, the thread accepts nothing more, and ends when it has passed on all
/// connections that it has accepted.
#[derive(Debug)]
pub struct Router {
    /// The thread has the other end.
    _life: UnixStream,
}

impl Router {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses a thread or sockets.
    pub fn start(sockets: Sockets) -> Result<Router, Error> {
        let cannot = |error| Error::io("cannot start the thread of a shared port", error);
        let (life, watched) = UnixStream::pair().map_err(cannot)?;
        forks::record(&life);
        let now = Instant::now();
        let routing =
            Routing { sockets: Some(sockets), life: watched, arrivals: Vec::new(), resume: now };
        let thread = thread::Builder::new().name("thinwire port".to_owned());
        thread.spawn(move || routing.run()).map_err(cannot)?;
        Ok(Router { _life: life })
    }
}

/// The state of the thread.
struct Routing {
    /// `None` once the listener of this thread has ended.
    sockets: Option<Sockets>,
    /// A socket whose other end closes when the listener ends.
    life: UnixStream,
    arrivals: Vec<Arrival>,
    /// The time from which to accept again.
    resume: Instant,
}

/// A connection that has not reached its listener.
struct Arrival {
    stream: TcpStream,
    peer: SocketAddr,
    since: Instant,
    preface: [u8; PREFACE_BYTES],
    /// The number of bytes of the preface that have come.
    length: usize,
    /// The time of the next attempt to pass the connection on.
    retry: Instant,
}

impl Routing {
    fn run(mut self) {
        while self.sockets.is_some() || !self.arrivals.is_empty() {
            self.poll();
            let now = Instant::now();
            if self.sockets.is_some() {
                self.accept(now);
            }
            let handshake_timeout = PLACES.handshake_timeout(self.arrivals.len());
            self.arrivals.retain_mut(|arrival| {
                now < arrival.since + handshake_timeout && arrival.advance(now)
            });
        }
    }

    /// Waits for something to do.
    fn poll(&mut self) {
        let now = Instant::now();
        let has_resumed = now >= self.resume;
        let if_so = |open| if open { PollFlags::IN } else { PollFlags::empty() };
        let accept = if_so(has_resumed && self.arrivals.len() < PLACES.total);
        let handshake_timeout = PLACES.handshake_timeout(self.arrivals.len());
        let turns = self.arrivals.iter().map(|arrival| match arrival.is_complete() {
            true => arrival.retry,
            false => arrival.since + handshake_timeout,
        });
        let resume = (now < self.resume).then_some(self.resume);
        let timeout = turns.chain(resume).min();
        let timeout = timeout.map(|at| timespec(at.saturating_duration_since(now)));
        let mut fds = Vec::new();
        if let Some(Sockets { tcp, unix }) = &self.sockets {
            fds.push(PollFd::new(&self.life, PollFlags::IN));
            fds.push(PollFd::new(unix, if_so(has_resumed)));
            fds.push(PollFd::new(tcp, accept));
        }
        let incomplete = self.arrivals.iter().filter(|arrival| !arrival.is_complete());
        fds.extend(incomplete.map(|arrival| PollFd::new(&arrival.stream, PollFlags::IN)));
        // An interrupted poll counts as one that finds nothing; the next one follows.
        let _ = poll(&mut fds, timeout.as_ref());
        let found: Vec<_> = fds.iter().take(2).map(PollFd::revents).collect();
        drop(fds);
        let Some(sockets) = &self.sockets else { return };
        // Without a descriptor the request stays in the queue, and poll would return at once again and again.
        if !found[1].is_empty() && sockets.share().is_err() {
            self.resume = Instant::now() + REFUSED_PAUSE;
        }
        if !found[0].is_empty() {
            self.sockets = None;
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_MAX {
            let Some(sockets) = &self.sockets else { return };
            if self.arrivals.len() >= PLACES.total || now < self.resume {
                return;
            }
            match sockets.tcp.accept() {
                Ok((stream, peer)) => self.greet(stream, peer, now),
                // Another process may have accepted it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                // Mostly no descriptor is left, which may be over soon.
                Err(_) => self.resume = now + REFUSED_PAUSE,
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, peer: SocketAddr, now: Instant) {
        let arrivals = self.arrivals.iter().enumerate().map(|(place, arrival)| {
            let (address, silent) = (arrival.peer.ip(), arrival.length == 0);
            (place, UnauthenticatedPeer { address, since: arrival.since, silent })
        });
        if let Some(place) = PLACES.evicted(arrivals, peer.ip()) {
            self.arrivals.swap_remove(place);
        }
        // A connection that cannot be set up is dropped; the other end tries again.
        if set_up(&stream).is_ok() {
            let preface = [0; PREFACE_BYTES];
            self.arrivals.push(Arrival {
                stream,
                peer,
                since: now,
                preface,
                length: 0,
                retry: now,
            });
        }
    }
}

impl Arrival {
    fn is_complete(&self) -> bool {
        self.length == PREFACE_BYTES
    }

    /// Reads the preface and passes the connection on; returns false once there is nothing more to do.
    fn advance(&mut self, now: Instant) -> bool {
        // Not one byte more, since the listener reads the handshake.
        while !self.is_complete() {
            match (&self.stream).read(&mut self.preface[self.length..]) {
                Ok(0) => return false,
                Ok(count) => self.length += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            // Before the whole preface is there, since that of another version may be shorter.
            if let Some(answer) = Key::refused_version(&self.preface[..self.length]) {
                let _ = send(&self.stream, &[answer], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                return false;
            }
        }
        if now < self.retry {
            return true;
        }
        let Some(key) = Key::parse_preface(&self.preface) else { return false };
        match pass(key, &self.stream) {
            Ok(()) => false,
            Err(errno) if is_over_soon(errno) => {
                self.retry = now + FULL_PAUSE;
                true
            }
            Err(_) => {
                let _ = send(&self.stream, &[REFUSED], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                false
            }
        }
    }
}

/// Returns whether an error may be over soon: the listener's queue is full, this user has the permitted
/// number of descriptors under way, or no descriptor is left.
fn is_over_soon(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::AGAIN
            | Errno::TOOMANYREFS
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::MFILE
            | Errno::NFILE
    )
}

/// Passes a connection to the listener with this key.
///
/// # Errors
/// [`Errno::CONNREFUSED`] if there is no such listener, [`Errno::AGAIN`] if it has as many
/// connections waiting as the system allows.
fn pass(key: Key, stream: &TcpStream) -> rustix::io::Result<()> {
    let descriptors = [stream.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // The socket with this name is the listener's: keys are random, so nobody can take the name before it.
    let (socket, to) = (unix_socket(SocketType::DGRAM)?, name(&key.to_string())?);
    sendmsg_addr(&socket, &to, &[IoSlice::new(&[0])], &mut control, flags).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_where_descriptors_are_short_and_is_refused_where_nobody_listens() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::TOOMANYREFS] {
            assert!(is_over_soon(errno), "{errno}");
        }
        assert!(!is_over_soon(Errno::CONNREFUSED));
    }
}
