//! The loop of a server: its sockets, and places for unauthenticated peers.
//!
//! A server listens as long as it lives, because clients may come at any time. Unauthenticated peers
//! have few places ([`Places`]) and little time. Dialled connections have [`Deadline::Dial`] until they
//! are open.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::duplex::{connect, fill, flush, set_up, timespec};
use crate::endpoint::dial::Resolver;
use crate::endpoint::dispatcher::Dispatcher;
use crate::endpoint::server_connection::ServerConnection;
use crate::endpoint::{ClientId, Node, Outbox};
use crate::gate::Answers;
use crate::shared_port::Listener;
use crate::tcp::wake::Wake;
use crate::unauthenticated_peers::{ACCEPTS_MAX, Places, REFUSED_PAUSE, UnauthenticatedPeer};
use crate::warning::warn;
use crate::{Deadline, Error, Kind};

/// The most connections at a time: every rank of the largest world, and some unauthenticated peers.
const CLIENTS_MAX: usize = 4096 + UNAUTHENTICATED_PEERS.total;
/// The most connections at a time that have not proven the token.
const UNAUTHENTICATED_PEERS: Places = Places { total: 256, per_address: 64 };
/// The most refusals to print: an unauthenticated peer may connect any number of times.
const SAID_MAX: usize = 8;

/// Number of bytes that is too small to hold up a frame, such as those of a handshake.
const SMALL_BYTES: usize = 1024;

/// Work of another thread for the thread of a node.
pub type Call<S> = Box<dyn FnOnce(&mut S, Instant, &mut Outbox) + Send>;

/// A node with all of its sockets.
pub struct EventLoop<S> {
    dispatcher: Dispatcher<S>,
    /// The listener for clients, if the node accepts any.
    listener: Option<Listener>,
    wake: Wake,
    calls: Receiver<Call<S>>,
    resolver: Resolver,
    /// The sockets of the dispatcher's connections, no more and no fewer.
    sockets: BTreeMap<ClientId, Socket>,
    /// The time from which to accept again.
    resume: Instant,
    /// State of holding back answers; `None` for a node that does not give way.
    answers: Option<Answers>,
    /// Time for which answers are held from the last turn on; zero if they may be written.
    held: Duration,
    /// Refusals that were printed.
    said: usize,
}

/// A connection and who is at its other end.
struct Socket {
    stream: TcpStream,
    peer: SocketAddr,
    since: Instant,
    /// Whether anything was received.
    has_read: bool,
    /// Whether the connection may have something to read, or take something.
    ready: bool,
    /// Both directions have ended.
    ended: bool,
    /// Addresses to try after this one; `None` once it is connected.
    connecting: Option<VecDeque<SocketAddr>>,
}

impl Socket {
    fn new(stream: TcpStream, peer: SocketAddr, now: Instant) -> Socket {
        let (has_read, ready, ended, connecting) = (false, true, false, None);
        Socket { stream, peer, since: now, has_read, ready, ended, connecting }
    }
}

impl<S: Node> EventLoop<S> {
    /// Returns the loop of a node. `listener` accepts its clients; `None` for a node that only dials
    /// others. Other threads use `calls` and `wake`.
    pub fn new(
        dispatcher: Dispatcher<S>,
        listener: Option<Listener>,
        wake: Wake,
        calls: Receiver<Call<S>>,
    ) -> EventLoop<S> {
        let answers = dispatcher.gives_way().then(Answers::default);
        let resolver = Resolver::new(dispatcher.resolve(), wake.waker());
        EventLoop {
            resolver,
            dispatcher,
            listener,
            wake,
            calls,
            sockets: BTreeMap::new(),
            resume: Instant::now(),
            answers,
            held: Duration::ZERO,
            said: 0,
        }
    }

    /// Serves until all senders of calls are dropped.
    pub fn run(&mut self) {
        loop {
            self.poll();
            let now = Instant::now();
            if !self.run_calls(now) {
                // What the host has sent last leaves as far as sockets take it at once.
                self.held = Duration::ZERO;
                return self.write(now);
            }
            self.accept(now);
            self.read(now);
            self.dispatcher.turn(now);
            self.dial(now);
            self.hold_back();
            self.write(now);
            self.close(now);
        }
    }

    /// Waits for something to do.
    fn poll(&mut self) {
        let now = Instant::now();
        let open = self.has_room() && now >= self.resume;
        let accept = if open { PollFlags::IN } else { PollFlags::empty() };
        let timeout = self.deadline(now).map(|at| timespec(at.saturating_duration_since(now)));
        let mut fds = vec![self.wake.poll_fd()];
        fds.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, accept)));
        let first = fds.len();
        let connections = self.sockets.values().zip(self.dispatcher.server_connections());
        fds.extend(connections.map(|(socket, server_connection)| {
            let interest = match socket.connecting {
                Some(_) => PollFlags::OUT,
                None => self.interest(server_connection),
            };
            PollFd::new(&socket.stream, interest)
        }));
        // An interrupted poll is like one that finds nothing: the next one follows.
        let _ = poll(&mut fds, timeout.as_ref());
        let found: Vec<_> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !found[0].is_empty() {
            self.wake.drain();
        }
        for (socket, events) in self.sockets.values_mut().zip(&found[first..]) {
            socket.ready = !events.is_empty();
            socket.ended = events.intersects(PollFlags::HUP | PollFlags::ERR);
        }
    }

    /// Returns the time of the next turn if no socket has anything.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let handshake_timeout =
            UNAUTHENTICATED_PEERS.handshake_timeout(self.unauthenticated_peers().count());
        let unauthenticated_peers = self
            .unauthenticated_peers()
            .map(|(_, unauthenticated_peer)| unauthenticated_peer.since + handshake_timeout);
        let late = unauthenticated_peers
            .chain(self.unopened().map(|(_, since)| since + Deadline::Dial.duration()))
            .min();
        let resume = (self.has_room() && now < self.resume).then_some(self.resume);
        let held = (!self.held.is_zero()).then(|| now + self.held);
        [late, resume, held, self.dispatcher.deadline(now)].into_iter().flatten().min()
    }

    /// Runs the calls of other threads; returns false when no other thread can call any more.
    fn run_calls(&mut self, now: Instant) -> bool {
        self.wake.take();
        loop {
            match self.calls.try_recv() {
                Ok(call) => self.dispatcher.call(now, call),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn unauthenticated_peers(&self) -> impl Iterator<Item = (ClientId, UnauthenticatedPeer)> {
        self.sockets.iter().zip(self.dispatcher.server_connections()).filter_map(
            |((id, socket), server_connection)| {
                let (address, silent) = (socket.peer.ip(), !socket.has_read);
                let unauthenticated_peer =
                    UnauthenticatedPeer { address, since: socket.since, silent };
                (server_connection.is_unauthenticated() && !server_connection.is_dialled())
                    .then_some((*id, unauthenticated_peer))
            },
        )
    }

    /// Returns the dialled connections that are not open yet, and since when they are dialled.
    fn unopened(&self) -> impl Iterator<Item = (ClientId, Instant)> {
        self.sockets.iter().zip(self.dispatcher.server_connections()).filter_map(
            |((id, socket), server_connection)| {
                (server_connection.is_unauthenticated() && server_connection.is_dialled())
                    .then_some((*id, socket.since))
            },
        )
    }

    /// Begins the connections that are due.
    fn dial(&mut self, now: Instant) {
        while let Some((id, address)) = self.dispatcher.next_dial(now) {
            self.resolver.resolve(id, address);
        }
        while let Some((id, resolved)) = self.resolver.take() {
            match resolved.and_then(begin) {
                Ok((stream, peer, rest)) if self.dispatcher.dialled(id) => {
                    let socket = Socket::new(stream, peer, now);
                    self.sockets.insert(id, Socket { connecting: Some(rest), ..socket });
                }
                Ok(_) => {}
                Err(error) => self.dispatcher.not_dialled(id, unreachable(error)),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.unauthenticated_peers().count() < UNAUTHENTICATED_PEERS.total
            && self.sockets.len() < CLIENTS_MAX
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_MAX {
            if !self.has_room() || now < self.resume {
                return;
            }
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok((stream, peer)) => self.greet(stream, peer, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.resume = now + REFUSED_PAUSE;
                    let refused = Error::io("the server could not accept a connection", error);
                    self.dispatcher.outbox().refusals.keep(refused.of(Kind::Timeout));
                }
            }
        }
    }

    fn greet(&mut self, stream: TcpStream, peer: SocketAddr, now: Instant) {
        if let Some(evicted) =
            UNAUTHENTICATED_PEERS.evicted(self.unauthenticated_peers(), peer.ip())
        {
            self.remove(evicted, now);
        }
        if set_up(&stream).is_ok() {
            self.sockets.insert(self.dispatcher.accept(), Socket::new(stream, peer, now));
        }
    }

    /// Reads from every socket that has input.
    fn read(&mut self, now: Instant) {
        for (id, socket) in &mut self.sockets {
            if !std::mem::take(&mut socket.ready) {
                continue;
            }
            if let Some(rest) = socket.connecting.take() {
                let failed = socket.stream.take_error().unwrap_or_else(Some);
                let Some(error) = failed else { continue };
                match begin(rest) {
                    Ok((stream, peer, rest)) => {
                        (socket.stream, socket.peer) = (stream, peer);
                        socket.connecting = Some(rest);
                    }
                    Err(_) => self.dispatcher.moved(*id, Err(unreachable(error)), now),
                }
                continue;
            }
            let Some(server_connection) = self.dispatcher.server_connection_mut(*id) else {
                continue;
            };
            let (before, most) =
                (server_connection.input.len(), server_connection.input_bytes_max());
            let mut filled = fill(&mut &socket.stream, &mut server_connection.input, most);
            if before >= most && socket.ended {
                // Nothing is read from whoever is held, which would tell that it is gone.
                filled = Err(Error::new(Kind::Io, "closed the connection"));
            }
            let has_read = server_connection.input.len() > before;
            socket.has_read |= has_read;
            if has_read || filled.is_err() {
                self.dispatcher.moved(*id, filled, now);
            }
        }
    }

    /// Decides for how long answers are held.
    fn hold_back(&mut self) {
        let Some(answers) = &mut self.answers else { return };
        self.held = Duration::ZERO;
        match self
            .dispatcher
            .server_connections()
            .any(|server_connection| server_connection.output.len() > SMALL_BYTES)
        {
            true => self.held = answers.wait(Instant::now()),
            false => answers.written(),
        }
    }

    /// Returns whether there is something to write to a connection now.
    fn writes_to(&self, server_connection: &ServerConnection) -> bool {
        let length = server_connection.output.len();
        length > 0 && (self.held.is_zero() || length <= SMALL_BYTES)
    }

    /// Returns the events of an open connection to poll for.
    fn interest(&self, server_connection: &ServerConnection) -> PollFlags {
        let mut flags = PollFlags::empty();
        let has_room = server_connection.input.len() < server_connection.input_bytes_max();
        flags.set(PollFlags::IN, has_room);
        flags.set(PollFlags::OUT, self.writes_to(server_connection));
        flags
    }

    /// Writes to every socket for which something is queued.
    fn write(&mut self, now: Instant) {
        let connections = self.sockets.keys().zip(self.dispatcher.server_connections());
        let filled = connections.filter(|(id, server_connection)| {
            self.sockets[id].connecting.is_none() && self.writes_to(server_connection)
        });
        for id in filled.map(|(id, _)| *id).collect::<Vec<_>>() {
            let (socket, server_connection) =
                (&self.sockets[&id], self.dispatcher.server_connection_mut(id));
            let server_connection = server_connection.expect("it is listed");
            let before = server_connection.output.len();
            let flushed = flush(&mut &socket.stream, &mut server_connection.output);
            let has_written = server_connection.output.len() < before;
            server_connection.shrink();
            if has_written || flushed.is_err() {
                self.dispatcher.moved(id, flushed, now);
            }
        }
    }

    /// Closes connections that are to be closed, and unauthenticated peers whose time is over.
    fn close(&mut self, now: Instant) {
        let unopened =
            self.unopened().filter(|(_, since)| now >= *since + Deadline::Dial.duration());
        for id in unopened.map(|(id, _)| id).collect::<Vec<_>>() {
            let seconds = Deadline::Dial.duration().as_secs();
            let error =
                Error::new(Kind::Unreachable, format!("does not answer within {seconds} s"));
            self.dispatcher.give_up(id, error);
        }
        let handshake_timeout =
            UNAUTHENTICATED_PEERS.handshake_timeout(self.unauthenticated_peers().count());
        let late = self.unauthenticated_peers().filter(|(_, unauthenticated_peer)| {
            now >= unauthenticated_peer.since + handshake_timeout
        });
        let late: Vec<_> = late.map(|(id, _)| id).collect();
        for id in self.dispatcher.ended().into_iter().chain(late) {
            self.remove(id, now);
        }
    }

    fn remove(&mut self, id: ClientId, now: Instant) {
        let Some((socket, ended)) = self.sockets.remove(&id).zip(self.dispatcher.remove(id, now))
        else {
            return;
        };
        match ended.error {
            // The node dials again, and tells whoever waits for it.
            _ if ended.is_dialled => {}
            error if matches!(error.kind, Kind::TokenMismatch | Kind::VersionMismatch) => {
                self.refuse(error.by(socket.peer));
            }
            _ if ended.is_unauthenticated => {
                self.dispatcher.outbox().refusals.count(socket.peer.ip());
            }
            _ => {}
        }
    }

    /// Keeps and prints the reason of a refusal, since the refused client may be one that others wait
    /// for.
    fn refuse(&mut self, error: Error) {
        if self.said < SAID_MAX {
            self.said += 1;
            warn(&error);
        }
        self.dispatcher.outbox().refusals.keep(error);
    }
}

/// A socket that connects to an address, and the addresses to try after that.
type Begun = (TcpStream, SocketAddr, VecDeque<SocketAddr>);

/// Begins to connect to the first of some addresses that the system does not refuse at once.
fn begin(mut addresses: VecDeque<SocketAddr>) -> io::Result<Begun> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    while let Some(address) = addresses.pop_front() {
        match connect(address) {
            Ok(stream) => return Ok((stream, address, addresses)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn unreachable(error: io::Error) -> Error {
    Error::io("cannot be reached", error).of(Kind::Unreachable)
}
