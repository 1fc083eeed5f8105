//! A non-blocking socket with a buffer of bytes to write and one of bytes that were read.
//!
//! It serves handshakes and stores, whose messages are short: the input that is read ahead is bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::secure::{Handshake, Preamble, Session};
use crate::shared_port::address::Key;
use crate::tcp::wake::Wake;
use crate::{Error, Kind, forks};

/// Connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Numbers of bytes that are read at once: at first, and at most.
const STEP_BYTES_MIN: usize = 4096;
const STEP_BYTES_MAX: usize = 64 << 10;

/// A connection and its two small buffers.
#[derive(Debug)]
pub struct Duplex {
    /// The connection, in non-blocking mode.
    pub stream: TcpStream,
    /// Bytes that were read and not consumed yet.
    pub input: Vec<u8>,
    /// Bytes that are still to be written.
    pub output: Vec<u8>,
    /// The largest number of input bytes to hold.
    pub input_bytes_max: usize,
    /// Whether anything was received.
    pub has_read: bool,
}

impl Duplex {
    /// Takes over `stream`; never holds more than `input_bytes_max` bytes of input.
    ///
    /// # Errors
    /// If the socket refuses its options.
    pub fn new(stream: TcpStream, input_bytes_max: usize) -> Result<Duplex, Error> {
        set_up(&stream)?;
        let (input, output) = (Vec::new(), Vec::new());
        Ok(Duplex { stream, input, output, input_bytes_max, has_read: false })
    }

    /// Returns the events to poll for.
    pub fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        if self.input.len() < self.input_bytes_max {
            flags |= PollFlags::IN;
        }
        if !self.output.is_empty() {
            flags |= PollFlags::OUT;
        }
        flags
    }

    /// Sends the key of a listener behind a shared port, and waits until `deadline` for that listener
    /// to accept the connection.
    ///
    /// # Errors
    /// If the port has no such listener, the connection breaks, or there is no answer.
    pub fn name(&mut self, key: Key, deadline: Instant) -> Result<(), Error> {
        self.output.extend(key.to_preface());
        loop {
            let pumped = self.pump();
            // Looked at before the pump's error: a port that refuses answers, and then ends the connection.
            if !self.input.is_empty() {
                return Key::check_answer(self.input.remove(0));
            }
            pumped?;
            if !self.wait(deadline, None) {
                return Err(Error::new(Kind::Timeout, "did not take the connection in time"));
            }
        }
    }

    /// Completes a handshake, blocking until `deadline` at most.
    ///
    /// # Errors
    /// If the handshake fails, the connection breaks, or the other side is silent.
    pub fn shake(
        &mut self,
        mut handshake: Handshake,
        deadline: Instant,
    ) -> Result<(Session, Preamble), Error> {
        loop {
            let pumped = self.pump();
            let advanced = handshake.advance(&mut self.input, &mut self.output);
            let flushed = self.flush();
            if let Some(done) = advanced? {
                flushed?;
                return Ok(done);
            }
            pumped.and(flushed)?;
            if !self.wait(deadline, None) {
                return Err(Error::new(Kind::Timeout, "did not end its handshake in time"));
            }
        }
    }

    /// Writes and reads as much as is possible without blocking.
    ///
    /// # Errors
    /// If the other side has closed the connection or it broke. Bytes that came before are in
    /// `input`.
    pub fn pump(&mut self) -> Result<(), Error> {
        let wrote = self.flush();
        let before = self.input.len();
        let filled = fill(&mut self.stream, &mut self.input, self.input_bytes_max);
        self.has_read |= self.input.len() > before;
        filled.and(wrote)
    }

    /// Writes as much as is possible without blocking.
    ///
    /// # Errors
    /// If the connection broke.
    pub fn flush(&mut self) -> Result<(), Error> {
        flush(&mut self.stream, &mut self.output)
    }

    /// Blocks until [`Duplex::pump`] can do something or `wake` is used; returns false when `deadline`
    /// has passed.
    pub fn wait(&self, deadline: Instant, wake: Option<&Wake>) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = vec![PollFd::new(&self.stream, self.interest())];
        fds.extend(wake.map(Wake::poll_fd));
        // An interrupted poll is like a short one: the caller pumps and waits again.
        let _ = poll(&mut fds, Some(&timespec(left)));
        !left.is_zero()
    }
}

/// Returns a non-blocking listener on `address`.
///
/// # Errors
/// [`Kind::AddressInUse`], or another error of the operating system.
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
            ErrorKind::AddrInUse => Kind::AddressInUse,
            _ => Kind::Io,
        };
        Error::io(format_args!("cannot listen on {address}"), error).of(kind)
    })
}

/// Begins to connect to an address; the socket becomes writable when the connection is made or has
/// failed.
///
/// # Errors
/// If the system refuses the socket, or knows at once that nothing is there.
pub fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    let stream = TcpStream::from(socket);
    set_up(&stream).map_err(|error| std::io::Error::other(error.context))?;
    match SockRef::from(&stream).connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(stream),
    }
}

/// Makes a connection non-blocking and without Nagle's delay, and records it so that forked processes
/// close it.
///
/// # Errors
/// If the socket refuses its options.
pub fn set_up(stream: &TcpStream) -> Result<(), Error> {
    forks::record(stream);
    let set = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
    set.map_err(|error| Error::io("cannot set up a connection", error))
}

/// Reads the bytes that have arrived, while `input` has fewer than `input_bytes_max` bytes.
///
/// # Errors
/// If the other side has closed the connection or it broke. Bytes that came before are in `input`.
pub fn fill(
    stream: &mut impl Read,
    input: &mut Vec<u8>,
    input_bytes_max: usize,
) -> Result<(), Error> {
    while input.len() < input_bytes_max {
        // A message that fills its step is likely to be a long one.
        let step = if input.len() < STEP_BYTES_MIN { STEP_BYTES_MIN } else { STEP_BYTES_MAX };
        let start = input.len();
        input.resize(start + step.min(input_bytes_max - start), 0);
        let read = stream.read(&mut input[start..]);
        input.truncate(start + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => return Err(Error::new(Kind::Io, "closed the connection")),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

/// Writes as much as is possible without blocking.
///
/// # Errors
/// If the connection broke.
pub fn flush(stream: &mut impl Write, output: &mut Vec<u8>) -> Result<(), Error> {
    let mut written = 0;
    let result = loop {
        if written == output.len() {
            break Ok(());
        }
        match stream.write(&output[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break Err(broken(error)),
        }
    };
    // Once, since the rest is moved to the front.
    output.drain(..written);
    result
}

/// Returns a duration for poll, at most a day.
pub fn timespec(duration: Duration) -> Timespec {
    let duration = duration.min(Duration::from_secs(86_400));
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

fn broken(error: std::io::Error) -> Error {
    Error::io("broke the connection", error)
}
