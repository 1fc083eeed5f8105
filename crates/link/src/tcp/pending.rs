//! A connection whose other end has not said yet who it is.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use crate::duplex::Duplex;
use crate::secure::{Handshake, Preamble, Role, Session, Token};
use crate::tcp::connection::Parts;
use crate::tcp::hello::{self, HELLO_BYTES_MAX, Hello};
use crate::tcp::options::Encryption;
use crate::unauthenticated_peers::UnauthenticatedPeer;
use crate::{Error, Kind};

/// Bytes that may be read ahead before the other end is known.
const INPUT_BYTES_MAX: usize = 4096;

/// A connection on its way.
#[derive(Debug)]
pub struct Pending {
    pub address: SocketAddr,
    pub deadline: Instant,
    since: Instant,
    /// Hello of the connecting side; known from the start if this side connects.
    pub hello: Option<Hello>,
    role: Role,
    duplex: Duplex,
    stage: Stage,
    encrypt: bool,
    same_host: bool,
}

#[derive(Debug)]
enum Stage {
    Connecting(Handshake),
    Shaking(Handshake),
    Greeting(Session),
    Over,
}

impl Pending {
    /// A connection to `address` that will say `hello`.
    ///
    /// # Errors
    /// If the operating system cannot even begin.
    pub fn connect(
        address: SocketAddr,
        hello: Hello,
        rule: Encryption,
        token: &Token,
        deadline: Instant,
    ) -> Result<Pending, Error> {
        let stream = begin(address).map_err(Error::broken)?;
        Pending::new(stream, address, Role::Initiator, Some(hello), rule, token, deadline)
    }

    /// A connection that was accepted from `address`. It stays an unauthenticated peer's until its hello has
    /// opened: anybody who has recorded the first message of a handshake can replay it.
    ///
    /// # Errors
    /// If the socket refuses its options.
    pub fn accept(
        stream: TcpStream,
        address: SocketAddr,
        rule: Encryption,
        token: &Token,
        deadline: Instant,
    ) -> Result<Pending, Error> {
        Pending::new(stream, address, Role::Responder, None, rule, token, deadline)
    }

    fn new(
        stream: TcpStream,
        address: SocketAddr,
        role: Role,
        hello: Option<Hello>,
        rule: Encryption,
        token: &Token,
        deadline: Instant,
    ) -> Result<Pending, Error> {
        let local = stream.local_addr().ok().map(|local| local.ip());
        let same_host = address.ip().is_loopback() || local == Some(address.ip());
        let encrypt = match rule {
            Encryption::Auto => !same_host,
            Encryption::Always => true,
            Encryption::Never => false,
        };
        let handshake = Handshake::new(role, token, Preamble { encrypt });
        let stage = match role {
            Role::Initiator => Stage::Connecting(handshake),
            Role::Responder => Stage::Shaking(handshake),
        };
        let duplex = Duplex::new(stream, INPUT_BYTES_MAX)?;
        let since = Instant::now();
        Ok(Pending { address, deadline, since, hello, role, duplex, stage, encrypt, same_host })
    }

    /// Whether I have accepted it.
    pub fn is_unauthenticated(&self) -> bool {
        self.role == Role::Responder
    }

    /// The connection as an unauthenticated peer, if this side has accepted it.
    pub fn unauthenticated_peer(&self) -> Option<UnauthenticatedPeer> {
        let (address, silent) = (self.address.ip(), !self.duplex.has_read);
        self.is_unauthenticated().then_some(UnauthenticatedPeer {
            address,
            since: self.since,
            silent,
        })
    }

    pub fn poll_fd(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Connecting(_) => PollFlags::OUT,
            _ => self.duplex.interest(),
        };
        PollFd::new(&self.duplex.stream, flags)
    }

    /// Continues as far as possible; true once both sides know each other. `admit` decides about
    /// the hello of an unauthenticated peer.
    ///
    /// # Errors
    /// If the connection breaks, the other end is none of ours, or one refuses the other.
    pub fn advance(
        &mut self,
        now: Instant,
        admit: impl FnOnce(&Hello) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        if let Stage::Connecting(_) = self.stage {
            // A non-blocking connect ends as an error of the socket or as a peer address.
            if !self.is_connected()? {
                return self.in_time(now);
            }
            if let Stage::Connecting(handshake) = std::mem::replace(&mut self.stage, Stage::Over) {
                self.stage = Stage::Shaking(handshake);
            }
            // The preamble has to be queued before the first pump.
        }
        let pumped = self.duplex.pump();
        let done = self.converse(admit);
        let flushed = self.duplex.flush();
        if done? {
            flushed?;
            return Ok(true);
        }
        pumped.and(flushed)?;
        self.in_time(now)
    }

    /// Returns the socket and its keys, once both sides know each other.
    pub fn into_parts(self) -> Parts {
        let session = match self.stage {
            Stage::Greeting(session) if self.encrypt => Some(session),
            _ => None,
        };
        let Duplex { stream, input, .. } = self.duplex;
        Parts { stream, session, read_ahead: input, same_host: self.same_host }
    }

    fn in_time(&self, now: Instant) -> Result<bool, Error> {
        if now < self.deadline {
            return Ok(false);
        }
        Err(Error::new(Kind::Timeout, "did not end its handshake in time"))
    }

    fn is_connected(&self) -> Result<bool, Error> {
        match self.duplex.stream.take_error() {
            Ok(Some(error)) | Err(error) => return Err(Error::broken(error)),
            Ok(None) => {}
        }
        match self.duplex.stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(Error::broken(error)),
        }
    }

    fn converse(&mut self, admit: impl FnOnce(&Hello) -> Result<(), Error>) -> Result<bool, Error> {
        let Duplex { input, output, .. } = &mut self.duplex;
        if let Stage::Shaking(handshake) = &mut self.stage {
            let Some((mut session, theirs)) = handshake.advance(input, output)? else {
                return Ok(false);
            };
            self.encrypt |= theirs.encrypt;
            if let Some(hello) = &self.hello {
                session.seal(&hello.to_bytes(), output);
            }
            self.stage = Stage::Greeting(session);
        }
        let Stage::Greeting(session) = &mut self.stage else { return Ok(false) };
        let Some(record) = session.receive(input, HELLO_BYTES_MAX)? else { return Ok(false) };
        match self.role {
            Role::Initiator => hello::parse_verdict(&record)?,
            Role::Responder => {
                let hello = Hello::parse(&record)?;
                let verdict = admit(&hello);
                session.seal(&hello::verdict_to_bytes(&verdict), output);
                verdict?;
                self.hello = Some(hello);
            }
        }
        Ok(true)
    }
}

/// Begins to connect without waiting for the end of it.
fn begin(address: SocketAddr) -> std::io::Result<TcpStream> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error)
            if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}
