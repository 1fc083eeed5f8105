//! Memory that two ranks of one host share, instead of a socket.
//!
//! Data between two such ranks goes through two [rings](ring) of bytes in memory that both map, one for
//! each direction. The TCP connection over which they have met and [agreed](exchange) on the memory
//! stays open and idle: when it ends, the other process has ended. A side that waits sleeps on a
//! *bell*, an eventfd. The other side rings it if it sees that this side sleeps.
//!
//! Nothing is encrypted. Both processes belong to one user and have proven the token.
//!
//! A forked process has copies of the memory and of the bells. They delay nothing, since the end of a rank
//! shows at its socket, which forked processes close ([`crate::forks`]).

pub mod exchange;
#[cfg(target_os = "linux")]
mod handover;
mod memory;
#[cfg(not(target_os = "linux"))]
mod nowhere;
mod ring;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, recv};

#[cfg(not(target_os = "linux"))]
use nowhere as handover;
use ring::Rings;

/// Memory that two ranks have agreed on, as one of them sees it.
#[derive(Debug)]
pub struct Segment {
    rings: Rings,
    /// The bell that wakes this side.
    mine: OwnedFd,
    /// The bell that this side rings.
    theirs: OwnedFd,
}

/// Returns the length of each ring, for a rank with `connections` connections that may share memory: 1
/// MiB, or less if all of the rank's rings together would exceed 64 MiB, but at least 64 KiB.
pub fn ring_bytes(connections: usize) -> usize {
    const BYTES_MAX: usize = 64 << 20;
    const RING_BYTES_MAX: usize = 1 << 20;
    const RING_BYTES_MIN: usize = 64 << 10;
    let share = BYTES_MAX / 2 / connections.max(1);
    (1 << share.max(1).ilog2()).clamp(RING_BYTES_MIN, RING_BYTES_MAX)
}

/// A stream of bytes through shared memory, with the interface of a socket that does not block.
#[derive(Debug)]
pub struct Stream {
    segment: Segment,
    /// The connection over which both sides have met.
    socket: TcpStream,
    /// Whether nothing more is written into the memory.
    has_ended: bool,
}

impl Stream {
    /// Returns the stream to the rank at the other end of `socket`.
    pub fn new(socket: TcpStream, segment: Segment) -> Stream {
        Stream { segment, socket, has_ended: false }
    }

    /// Returns the connection over which both sides have met.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns whether a read would return bytes or find the end.
    pub fn has_input(&self) -> bool {
        self.has_ended || self.segment.rings.has_input()
    }

    /// Returns whether a write would take bytes.
    pub fn has_room(&self) -> bool {
        self.segment.rings.has_room()
    }

    /// Asks the other side for a wake-up at these events. Returns false if one of these events has
    /// happened already; this side must then not sleep.
    pub fn arm(&self, events: PollFlags) -> bool {
        let rings = &self.segment.rings;
        let (input, room) = (events.contains(PollFlags::IN), events.contains(PollFlags::OUT));
        if input {
            rings.await_input();
        }
        if room {
            rings.await_room();
        }
        !(input && self.has_input() || room && self.has_room())
    }

    /// Returns the descriptors to poll while something is awaited: the bell, and the socket, which
    /// shows that the other side has ended.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        // Once the end is known, it is not polled for: a socket that has ended would end every poll.
        let socket = (!self.has_ended).then(|| PollFd::new(&self.socket, PollFlags::IN));
        std::iter::once(PollFd::new(&self.segment.mine, PollFlags::IN)).chain(socket)
    }

    /// Records the result of poll for each of [`Stream::poll_fds`].
    pub fn polled(&mut self, found: &[PollFlags]) {
        if found.first().is_some_and(|found| !found.is_empty()) {
            // This silences the bell; it fails if the bell is silent already, which is no error.
            let _ = rustix::io::read(&self.segment.mine, &mut [0; 8]);
        }
        if found.get(1).is_some_and(|found| !found.is_empty()) {
            let received = recv(&self.socket, &mut [0; 64], RecvFlags::DONTWAIT);
            // A peer that writes there, where nothing belongs, is treated like one that is gone.
            self.has_ended = !matches!(received, Err(rustix::io::Errno::AGAIN));
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Segment { rings, theirs, .. } = &mut self.segment;
        match rings.read(slices, || wake(theirs))? {
            // An empty ring after the end is the end of the stream: whatever the other side wrote came before.
            0 if !self.has_ended => Err(ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Segment { rings, theirs, .. } = &mut self.segment;
        match rings.write(slices, || wake(theirs))? {
            0 => Err(ErrorKind::WouldBlock.into()),
            written => Ok(written),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Rings a bell.
fn wake(bell: &OwnedFd) {
    // It fails if the bell has been rung 2^64 times unheard.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
