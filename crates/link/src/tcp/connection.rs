//! One stream: its two halves, its keys, and its readiness.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use socket2::{SockRef, TcpKeepalive};
use thinwire_wire::{Header, Rank};

use crate::secure::Session;
use crate::tcp::buffer::Moved;
use crate::tcp::reader::{Protection, Reader, Traffic};
use crate::tcp::transport::Transport;
use crate::tcp::writer::Writer;
use crate::{Error, Port};

/// A connection whose other end is known.
#[derive(Debug)]
pub struct Connection {
    peer: Rank,
    stream: Transport,
    session: Option<Session>,
    /// Whether both ends are on this machine.
    pub same_host: bool,
    pub reader: Reader,
    pub writer: Writer,
    /// Whether the stream may have something to read.
    pub readable: bool,
    /// Whether the stream may take something.
    writable: bool,
}

/// Result of a handshake: the stream, its keys, and bytes read ahead.
#[derive(Debug)]
pub struct Parts {
    pub stream: Transport,
    /// The keys, if traffic is encrypted.
    pub session: Option<Session>,
    /// Bytes of frames that came with the handshake's end.
    pub read_ahead: Vec<u8>,
    /// Whether both ends are on this machine.
    pub same_host: bool,
}

impl Connection {
    /// Returns the connection to `peer` that carries `traffic`.
    pub fn new(peer: Rank, epoch: u32, traffic: Traffic, parts: Parts) -> Connection {
        let Parts { stream, session, read_ahead, same_host } = parts;
        let protection = match (&session, same_host) {
            (Some(_), _) => Protection::Sealed,
            (None, false) => Protection::Checksum,
            (None, true) => Protection::Trusted,
        };
        Connection {
            peer,
            reader: Reader::new(peer, epoch, traffic, protection, &read_ahead),
            writer: Writer::new(peer, protection),
            readable: !read_ahead.is_empty(),
            writable: true,
            stream,
            session,
            same_host,
        }
    }

    /// Lets the operating system notice a peer that has gone silently.
    ///
    /// # Errors
    /// If the socket refuses.
    pub fn watch(&self, silence: Duration, traffic: Traffic) -> Result<(), Error> {
        let socket = SockRef::from(self.stream.socket());
        let interval = (silence / 5).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
        let set = socket.set_tcp_keepalive(&keepalive);
        // Not on data connections: a peer that has no place for data yet closes its window, which looks the same.
        #[cfg(target_os = "linux")]
        let set = set.and_then(|()| match traffic {
            Traffic::Control => {
                let silence_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
                Ok(rustix::net::sockopt::set_tcp_user_timeout(self.stream.socket(), silence_ms)?)
            }
            Traffic::Data => Ok(()),
        });
        #[cfg(not(target_os = "linux"))]
        let _ = traffic;
        set.map_err(|error| Error::io("cannot set up a connection", error))
    }

    pub fn push(&mut self, header: Header) {
        self.writer.push(header);
    }

    /// Returns the number of bytes that could be written now.
    pub fn writable_bytes(&self) -> usize {
        if self.writable || self.stream.has_room() { self.writer.pending_bytes() } else { 0 }
    }

    /// Returns whether a read could bring something now, as far as is known.
    pub fn may_read(&self) -> bool {
        (self.readable || self.stream.has_input()) && !self.reader.paused && !self.reader.ended
    }

    /// Returns whether these bytes go over the socket, and not through shared memory.
    pub fn is_socket(&self) -> bool {
        self.stream.is_socket()
    }

    /// Returns the descriptors to poll, with `input` as the event for reading; none if there is nothing
    /// to wait for. A socket that is not to be read must not be polled for its end either, or poll
    /// would return at once again and again.
    pub fn poll_fds(&self, input: PollFlags) -> impl Iterator<Item = PollFd<'_>> {
        self.stream.poll_fds(self.awaited(input))
    }

    /// Prepares a sleep until an event of [`Connection::poll_fds`]. Returns false if such an event has
    /// happened already.
    pub fn arm(&self, input: PollFlags) -> bool {
        self.stream.arm(self.awaited(input))
    }

    fn awaited(&self, input: PollFlags) -> PollFlags {
        let mut flags = PollFlags::empty();
        if !self.readable && !self.reader.paused && !self.reader.ended {
            flags |= input;
        }
        if !self.writable && self.writer.pending_bytes() > 0 {
            flags |= PollFlags::OUT;
        }
        flags
    }

    /// Records the result of poll for each of [`Connection::poll_fds`].
    pub fn polled(&mut self, found: &[PollFlags]) {
        let over = PollFlags::HUP | PollFlags::ERR;
        match &mut self.stream {
            Transport::Socket(_) => {
                let found = found.first().copied().unwrap_or(PollFlags::empty());
                self.readable |= found.intersects(PollFlags::IN | over);
                self.writable |= found.intersects(PollFlags::OUT | over);
            }
            // A stream in memory knows by itself what it is ready for.
            Transport::Memory(stream) => stream.polled(found),
        }
    }

    /// Writes queued frames, at most `limit` bytes, in one system call.
    ///
    /// # Errors
    /// [`crate::Kind::Io`] if the connection is broken, [`crate::Kind::Corrupt`] if the peer has
    /// written garbage into shared memory.
    pub fn write(&mut self, port: &mut dyn Port, limit: usize) -> Result<Moved, Error> {
        let written = self.writer.write(&mut self.stream, self.session.as_mut(), port, limit);
        let written = written.map_err(|error| Error::of_peer(self.peer, error))?;
        self.writable &= !written.stopped;
        Ok(written)
    }

    /// Reads and delivers frames, see [`Reader::read`].
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read(&mut self, port: &mut dyn Port, limit: usize) -> Result<Moved, Error> {
        let taken = self.reader.read(&mut self.stream, self.session.as_mut(), port, limit)?;
        self.readable &= !taken.stopped;
        Ok(taken)
    }

    /// Reads bytes and drops them; returns false at the end of the stream.
    pub fn discard(&mut self) -> bool {
        let mut scratch = [0; 16 << 10];
        loop {
            match self.stream.read(&mut scratch) {
                Ok(0) => self.reader.ended = true,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(_) => self.reader.ended = true,
            }
            return !self.reader.ended;
        }
    }

    /// Tells the peer that nothing more comes.
    pub fn shut(&self) {
        // If this fails, the connection has ended already.
        let _ = self.stream.socket().shutdown(std::net::Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use thinwire_wire::{HEADER_BYTES, Kind as Frame, Tag, checksum};

    use super::*;
    use crate::tcp::control::Control;

    /// The header of a frame that was written.
    #[allow(clippy::field_reassign_with_default)] // its other fields are its own
    fn written(same_host: bool) -> Header {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let stream = stream.into();
        let parts = Parts { stream, session: None, read_ahead: Vec::new(), same_host };
        let mut connection = Connection::new(Rank(1), 0, Traffic::Data, parts);
        let tag = Tag { step: 0, tensor: 0, message: 0 };
        connection.push(Header::new(Frame::Data, 0, tag, 7));
        let mut port = Control::default();
        port.reason = b"payload".to_vec();
        connection.write(&mut port, usize::MAX).unwrap();
        let mut bytes = [0; HEADER_BYTES];
        far.read_exact(&mut bytes).unwrap();
        Header::parse(&bytes).unwrap()
    }

    #[test]
    fn payloads_in_clear_have_a_checksum_unless_they_stay_on_this_host() {
        assert_eq!(written(false).payload_checksum, Some(checksum(b"payload")));
        assert_eq!(written(true).payload_checksum, None);
    }
}
