//! The server of a store: one thread, non-blocking, everything bounded.
//!
//! A server listens as long as it lives, because ranks may make links at any time. Strangers have
//! few places ([`Places`]) and little time.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};

use crate::duplex::{Duplex, timespec};
use crate::store::tcp::visitor::{Contents, STRANGER_INPUT_BYTES_MAX, Turn, Visitor};
use crate::strangers::{ACCEPTS_MAX, Places, REFUSED_PAUSE, Stranger};
use crate::{Error, Kind, Token};

/// The most connections at a time: every rank of the largest world, and some strangers.
const CLIENTS_MAX: usize = 4096 + STRANGERS.total;
/// The most of them that have not proven the token.
const STRANGERS: Places = Places { total: 256, per_address: 64 };
/// Connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// An idle client keeps no larger buffers than this.
const IDLE_BYTES_MAX: usize = 1024;

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

    /// Returns the address that the server listens on.
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
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        // Once more, for a longer queue.
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => Kind::AddressInUse,
            _ => Kind::Io,
        };
        Error::io(format_args!("cannot listen on {address}"), error).of(kind)
    })
}

/// A connection and who is at its other end.
struct Client {
    duplex: Duplex,
    peer: SocketAddr,
    since: Instant,
    visitor: Visitor,
    /// The socket may have something for us, or take something.
    ready: bool,
}

impl Client {
    fn stranger(&self) -> Option<Stranger> {
        let (address, since) = (self.peer.ip(), self.since);
        let silent = !self.duplex.has_read;
        self.visitor.is_stranger().then_some(Stranger { address, since, silent })
    }

    /// The time of its next turn, even without new bytes.
    fn deadline(&self, strangers: usize) -> Option<Instant> {
        match self.visitor.is_stranger() {
            true => Some(self.since + STRANGERS.patience(strangers)),
            false => self.visitor.deadline(),
        }
    }

    /// Serves it until it would block.
    fn serve(&mut self, contents: &mut Contents, now: Instant) -> Result<(), Error> {
        let pumped = self.duplex.pump();
        loop {
            let left = self.duplex.input.len();
            let Duplex { input, output, .. } = &mut self.duplex;
            let advanced = self.visitor.advance(&mut Turn { input, output, contents, now });
            let flushed = self.duplex.flush();
            advanced?;
            flushed?;
            // Requests that had to wait until replies were written.
            if self.duplex.input.len() == left {
                break;
            }
        }
        self.duplex.input_bytes_max = self.visitor.input_bytes_max();
        self.duplex.shrink(IDLE_BYTES_MAX);
        pumped
    }
}

struct State {
    token: Token,
    contents: Contents,
    clients: Vec<Client>,
    /// The time from which to accept again.
    resume: Instant,
}

impl State {
    fn new(token: Token) -> State {
        let contents = Contents::default();
        State { token, contents, clients: Vec::new(), resume: Instant::now() }
    }

    fn serve(&mut self, listener: &TcpListener, stopped: &UnixStream) {
        while !self.poll(listener, stopped) {
            let now = Instant::now();
            self.accept(listener, now);
            let before = self.contents.values.len();
            self.turn(now, false);
            // Values that came after their waiters were looked at.
            if self.contents.values.len() != before {
                self.turn(now, true);
            }
        }
    }

    /// Waits for something to do; true if the server is to end.
    fn poll(&mut self, listener: &TcpListener, stopped: &UnixStream) -> bool {
        let (now, strangers) = (Instant::now(), self.strangers());
        let open = self.may_accept() && now >= self.resume;
        let accept = if open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(listener, accept)];
        fds.extend(self.clients.iter().map(|c| PollFd::new(&c.duplex.stream, c.duplex.interest())));
        let resume = (!open && self.may_accept()).then_some(self.resume);
        let deadlines = self.clients.iter().filter_map(|client| client.deadline(strangers));
        let timeout = deadlines
            .chain(resume)
            .min()
            .map(|deadline| timespec(deadline.saturating_duration_since(now)));
        let polled = poll(&mut fds, timeout.as_ref());
        let found: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (client, ready) in self.clients.iter_mut().zip(&found[2..]) {
            client.ready = *ready;
        }
        polled.is_ok() && found[0]
    }

    fn strangers(&self) -> usize {
        self.clients.iter().filter(|client| client.visitor.is_stranger()).count()
    }

    fn may_accept(&self) -> bool {
        self.strangers() < STRANGERS.total && self.clients.len() < CLIENTS_MAX
    }

    fn accept(&mut self, listener: &TcpListener, now: Instant) {
        for _ in 0..ACCEPTS_MAX {
            if !self.may_accept() || now < self.resume {
                return;
            }
            match listener.accept() {
                Ok((stream, peer)) => self.greet(stream, peer, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.resume = now + REFUSED_PAUSE;
                    let refused = Error::io("the store could not accept a connection", error);
                    self.contents.refused = Some(refused.of(Kind::Timeout));
                }
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, peer: SocketAddr, now: Instant) {
        let strangers = self.clients.iter().enumerate();
        let strangers = strangers.filter_map(|(place, client)| Some((place, client.stranger()?)));
        if let Some(place) = STRANGERS.evicted(strangers, peer.ip()) {
            let evicted = self.clients.swap_remove(place);
            self.contents.strangers.add(evicted.peer.ip());
        }
        let Ok(duplex) = Duplex::new(stream, STRANGER_INPUT_BYTES_MAX) else { return };
        let visitor = Visitor::new(&self.token);
        self.clients.push(Client { duplex, peer, since: now, visitor, ready: true });
    }

    /// Gives every visitor that can proceed a turn; `changed` if there are new values.
    fn turn(&mut self, now: Instant, changed: bool) {
        let (strangers, contents) = (self.strangers(), &mut self.contents);
        self.clients.retain_mut(|client| {
            let due = client.deadline(strangers).is_some_and(|deadline| now >= deadline);
            let waits = changed && client.visitor.deadline().is_some();
            if !due && !waits && !client.ready {
                return true;
            }
            client.ready = false;
            let served = client.serve(contents, now);
            let is_stranger = client.visitor.is_stranger();
            let kept = served.is_ok() && !(due && is_stranger);
            match served {
                Err(error) if matches!(error.kind, Kind::TokenMismatch | Kind::VersionMismatch) => {
                    contents.refuse(error.by(client.peer));
                }
                _ if !kept && is_stranger => contents.strangers.add(client.peer.ip()),
                _ => {}
            }
            kept
        });
    }
}
