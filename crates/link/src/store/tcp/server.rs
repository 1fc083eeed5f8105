//! The server of a store: one thread, non-blocking, everything bounded.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::duplex::{Duplex, timespec};
use crate::error::plain;
use crate::secure::{Handshake, Preamble, Role, Session};
use crate::store;
use crate::store::mem::Values;
use crate::store::tcp::message::{self, MESSAGE_BYTES_MAX, Request};
use crate::{Error, Kind, Token};

/// The most connections at a time: every rank of the largest world, and some strangers.
const CLIENTS_MAX: usize = 4096 + STRANGERS_MAX;
/// The most of them that have not proven the token.
const STRANGERS_MAX: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Room for one request and a part of the next.
const INPUT_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// How long not to accept when the process has no file descriptor left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A store that other processes reach; it ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` (port 0 for any) for clients with the same token.
    ///
    /// # Errors
    /// [`Kind::AddressInUse`] if another process listens there.
    pub fn bind(address: SocketAddr, token: &Token) -> Result<Server, Error> {
        let listener = listen(address)?;
        let cannot = |error| Error::io(format_args!("cannot listen on {address}"), error);
        let address = listener.local_addr().map_err(cannot)?;
        let (stop, stopped) = UnixStream::pair().map_err(cannot)?;
        let mut state = State::new(token.clone());
        let thread = thread::Builder::new()
            .name("thinwire store".to_owned())
            .spawn(move || state.serve(&listener, &stopped))
            .map_err(cannot)?;
        Ok(Server { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread's poll ends when this end is shut.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A non-blocking listener on `address`.
///
/// # Errors
/// [`Kind::AddressInUse`], or what else the operating system has against it.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|error| {
        let context = format!("cannot listen on {address}: {}", plain(&error));
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => Kind::AddressInUse,
            _ => Kind::Io,
        };
        Error::new(kind, context).with_source(error)
    })
}

struct Client {
    duplex: Duplex,
    peer: SocketAddr,
    stage: Stage,
}

enum Stage {
    Stranger { handshake: Handshake, deadline: Instant },
    Known { session: Session, waiting: Option<Waiting> },
}

/// A client that wants a value which nobody has written.
struct Waiting {
    key: String,
    wait: Duration,
    deadline: Instant,
}

impl Client {
    fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Stranger { deadline, .. } => Some(*deadline),
            Stage::Known { waiting, .. } => waiting.as_ref().map(|waiting| waiting.deadline),
        }
    }

    fn is_stranger(&self) -> bool {
        matches!(self.stage, Stage::Stranger { .. })
    }
}

struct State {
    token: Token,
    values: Values,
    clients: Vec<Client>,
    /// The last stranger that was refused: it may be the rank that somebody waits for.
    refused: Option<Error>,
    resume: Instant,
}

impl State {
    fn new(token: Token) -> State {
        State {
            token,
            values: Values::default(),
            clients: Vec::new(),
            refused: None,
            resume: Instant::now(),
        }
    }

    fn serve(&mut self, listener: &TcpListener, stopped: &UnixStream) {
        loop {
            if self.poll(listener, stopped) {
                return;
            }
            let now = Instant::now();
            self.accept(listener, now);
            let mut clients = std::mem::take(&mut self.clients);
            let before = self.values.len();
            clients.retain_mut(|client| self.keep(client, now));
            // A value that came after its waiter was looked at.
            if self.values.len() != before {
                clients.retain_mut(|client| self.keep(client, now));
            }
            self.clients = clients;
        }
    }

    /// Waits for something to do; true if the server is to end.
    fn poll(&self, listener: &TcpListener, stopped: &UnixStream) -> bool {
        let now = Instant::now();
        let open = self.may_accept() && now >= self.resume;
        let accept = if open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(listener, accept)];
        fds.extend(self.clients.iter().map(|c| PollFd::new(&c.duplex.stream, c.duplex.interest())));
        let resume = (!open && self.may_accept()).then_some(self.resume);
        let deadlines = self.clients.iter().filter_map(Client::deadline).chain(resume);
        let timeout =
            deadlines.min().map(|deadline| timespec(deadline.saturating_duration_since(now)));
        let polled = poll(&mut fds, timeout.as_ref());
        polled.is_ok() && !fds[0].revents().is_empty()
    }

    fn may_accept(&self) -> bool {
        let strangers = self.clients.iter().filter(|client| client.is_stranger()).count();
        strangers < STRANGERS_MAX && self.clients.len() < CLIENTS_MAX
    }

    fn accept(&mut self, listener: &TcpListener, now: Instant) {
        while self.may_accept() {
            match listener.accept() {
                Ok((stream, peer)) => self.greet(stream, peer, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    self.resume = now + EXHAUSTED_PAUSE;
                    return;
                }
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, peer: SocketAddr, now: Instant) {
        let Ok(duplex) = Duplex::new(stream, INPUT_BYTES_MAX) else { return };
        let preamble = Preamble { encrypt: true };
        let handshake = Handshake::new(Role::Responder, &self.token, preamble);
        let stage = Stage::Stranger { handshake, deadline: now + HANDSHAKE_TIMEOUT };
        self.clients.push(Client { duplex, peer, stage });
    }

    /// Serves a client as far as it goes; false if it is over.
    fn keep(&mut self, client: &mut Client, now: Instant) -> bool {
        let pumped = client.duplex.pump();
        let served = self.advance(client, now);
        let flushed = client.duplex.flush();
        if let Err(error) = served {
            if matches!(error.kind, Kind::TokenMismatch | Kind::VersionMismatch) {
                self.refused = Some(error.by(client.peer));
            }
            return false;
        }
        pumped.is_ok() && flushed.is_ok()
    }

    fn advance(&mut self, client: &mut Client, now: Instant) -> Result<(), Error> {
        let Client { duplex, stage, .. } = client;
        if let Stage::Stranger { handshake, deadline } = stage {
            match handshake.advance(&mut duplex.input, &mut duplex.output)? {
                Some((session, _)) => *stage = Stage::Known { session, waiting: None },
                None if now >= *deadline => {
                    return Err(Error::new(Kind::Timeout, "did not end its handshake"));
                }
                None => {}
            }
        }
        let Stage::Known { session, waiting } = stage else { return Ok(()) };
        loop {
            if let Some(wanted) = waiting {
                let Some(reply) = self.reply(wanted, now) else { break };
                session.seal(&reply, &mut duplex.output);
                *waiting = None;
            }
            match session.receive(&mut duplex.input, MESSAGE_BYTES_MAX)? {
                Some(request) => match Request::parse(&request)? {
                    Request::Set { key, value } => {
                        let done = self.values.set(&key, &value);
                        let reply = message::reply_to_bytes(done.as_ref().map(|()| &[][..]));
                        session.seal(&reply, &mut duplex.output);
                    }
                    Request::Get { key, wait } => {
                        *waiting = Some(Waiting { key, wait, deadline: now + wait });
                    }
                },
                None => return Ok(()),
            }
        }
        if duplex.input.len() >= INPUT_BYTES_MAX {
            return Err(Error::new(Kind::Limit, "asks faster than it takes replies"));
        }
        Ok(())
    }

    /// What a waiting client is told, if it is time.
    fn reply(&self, waiting: &Waiting, now: Instant) -> Option<Vec<u8>> {
        match self.values.get(&waiting.key) {
            Some(value) => Some(message::reply_to_bytes(Ok(value))),
            None if now >= waiting.deadline => {
                let missing = self.missing(&waiting.key, waiting.wait);
                Some(message::reply_to_bytes(Err(&missing)))
            }
            None => None,
        }
    }

    /// Why a value has not come: perhaps its writer was refused.
    fn missing(&self, key: &str, wait: Duration) -> Error {
        let missing = store::missing(key, wait);
        match &self.refused {
            Some(refused) => Error::new(refused.kind, format!("{missing}; {}", refused.context)),
            None => missing,
        }
    }
}
