//! The stream of bytes under a connection: a socket, or memory that both ranks share.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags};

use crate::shm;

/// A stream of bytes that does not block.
#[derive(Debug)]
pub enum Transport {
    /// A connected socket.
    Socket(TcpStream),
    /// Shared memory, and the socket over which it was agreed on.
    Memory(Box<shm::Stream>),
}

impl Transport {
    /// Returns the socket; when it ends, the stream ends.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Transport::Socket(socket) => socket,
            Transport::Memory(stream) => stream.socket(),
        }
    }

    /// Returns whether the bytes go over a socket, so that a network may be slower than this process.
    pub fn is_socket(&self) -> bool {
        matches!(self, Transport::Socket(_))
    }

    /// Returns whether there is certainly something to read. Always false for a socket, which must
    /// be polled to find out.
    pub fn has_input(&self) -> bool {
        matches!(self, Transport::Memory(stream) if stream.has_input())
    }

    /// Returns whether there is certainly room to write. Always false for a socket, which must be
    /// polled to find out.
    pub fn has_room(&self) -> bool {
        matches!(self, Transport::Memory(stream) if stream.has_room())
    }

    /// Prepares a sleep that these events end. Returns false if one of these events has happened already;
    /// this side must then not sleep.
    pub fn arm(&self, events: PollFlags) -> bool {
        match self {
            Transport::Socket(_) => true,
            Transport::Memory(stream) => stream.arm(events),
        }
    }

    /// Returns the descriptors to poll for these events.
    pub fn poll_fds(&self, events: PollFlags) -> impl Iterator<Item = PollFd<'_>> {
        let (socket, memory) = match self {
            _ if events.is_empty() => (None, None),
            Transport::Socket(socket) => (Some(PollFd::new(socket, events)), None),
            Transport::Memory(stream) => (None, Some(stream.poll_fds())),
        };
        socket.into_iter().chain(memory.into_iter().flatten())
    }
}

impl From<TcpStream> for Transport {
    fn from(socket: TcpStream) -> Transport {
        Transport::Socket(socket)
    }
}

impl Read for Transport {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Socket(socket) => socket.read(bytes),
            Transport::Memory(stream) => stream.read(bytes),
        }
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Transport::Socket(socket) => socket.read_vectored(slices),
            Transport::Memory(stream) => stream.read_vectored(slices),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Socket(socket) => socket.write(bytes),
            Transport::Memory(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Transport::Socket(socket) => socket.write_vectored(slices),
            Transport::Memory(stream) => stream.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // Neither a socket nor memory buffers anything here.
        Ok(())
    }
}
