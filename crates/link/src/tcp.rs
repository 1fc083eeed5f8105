//! The link of a rank to all others.
//!
//! A full mesh: between two ranks there are one control connection and one or more data connections,
//! each of which has proven the job token. One thread drives all of them with poll(2). docs/wire.md
//! describes the bytes on them.

mod agreement;
mod buffer;
pub(crate) mod cancel;
mod connect;
pub(crate) mod connection;
pub(crate) mod control;
mod mesh;
mod options;
pub(crate) mod peer;
mod pending;
mod polling;
pub(crate) mod reader;
mod shutdown;
mod transfer;
pub(crate) mod transport;
pub(crate) mod wake;
mod writer;

pub use agreement::decline;
pub use cancel::{Cancel, Unreachable, Watch};
pub use connect::{connect, unreachable};
pub use options::{
    CONNECTIONS_MAX, Connections, Encryption, Options, SharedMemory, address_towards,
};
#[doc(hidden)]
pub use reader::replay;
pub use wake::Waker;

use std::time::{Duration, Instant};

use thinwire_wire::{Header, Kind as Frame, Rank, World};

use crate::gate::{BulkGate, Urgent};
use crate::shared_port::Listener;
use crate::tcp::peer::Peer;
use crate::tcp::transfer::{Turn, receive, transmit};
use crate::tcp::wake::{Wake, Wakers};
use crate::unauthenticated_peers::ACCEPTS_MAX;
use crate::{Counters, Error, Limiter, Port};

/// Time that a result of poll is trusted, so that a message costs few system calls.
const FRESH: Duration = Duration::from_micros(20);
/// Time between two checks of the port that stays open.
const PORT_EVERY: Duration = Duration::from_millis(250);

/// All connections of one rank, driven by one thread.
/// Frames between two ranks may overtake each other; their tags identify them.
#[derive(Debug)]
pub struct Link {
    world: World,
    epoch: u32,
    /// By rank; `None` for this rank.
    peers: Vec<Option<Peer>>,
    egress: Option<Limiter>,
    ingress: Option<Limiter>,
    heartbeat_timeout: Option<Duration>,
    wake: Wake,
    counters: Counters,
    /// Peer that is served first; it changes each round, so that a rate limit is shared fairly.
    first: usize,
    /// Priority of other frames over bulk.
    gate: BulkGate,
    /// Whether connections are reserved for bulk.
    has_bulk: bool,
    /// Time of the last poll of the sockets.
    polled: Instant,
    /// Time at which the thread last slept, and the bytes that had moved by then.
    slept: (Instant, u64),
    /// Reason that ended the link.
    dead: Option<Error>,
    /// When everything that had come from all peers was last read.
    round: Instant,
    /// Listener for the peers that were silent when the link ended.
    unreachable: Option<Unreachable>,
    /// Port at which others check whether this rank can be reached, and the time at which it was last served.
    port: Option<(Listener, Instant)>,
}

impl Link {
    /// Returns the link of a rank that is connected to its peers.
    ///
    /// # Errors
    /// If the operating system has no sockets left.
    pub(crate) fn new(
        world: World,
        peers: Vec<Option<Peer>>,
        options: &Options,
    ) -> Result<Link, Error> {
        let now = Instant::now();
        let limiter = || options.limit.map(|rate| Limiter::new(rate, now));
        Ok(Link {
            world,
            epoch: options.epoch,
            peers,
            egress: limiter(),
            ingress: limiter(),
            heartbeat_timeout: options.heartbeat_timeout,
            wake: Wake::new()?,
            counters: Counters::default(),
            first: 0,
            gate: BulkGate::new(),
            has_bulk: false,
            polled: now,
            slept: (now, 0),
            dead: None,
            round: now,
            unreachable: options.unreachable.clone(),
            port: None,
        })
    }

    /// Keeps the port of the meeting open; connections to it are accepted and closed.
    pub(crate) fn with_port(self, listener: Listener) -> Link {
        Link { port: Some((listener, self.round)), ..self }
    }

    /// Returns this rank and the size of the world.
    pub fn world(&self) -> World {
        self.world
    }

    /// Returns the epoch of the group that the link belongs to; frames of other epochs are refused.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Queues a frame; its payload is fetched from the [`Port`] when it is written.
    ///
    /// # Panics
    /// If `to` is not a peer.
    pub fn send(&mut self, to: Rank, header: Header) {
        self.peer(to, &header).send(header);
        if self.gate.is_open() {
            self.gate.record(Urgent::Waits, Instant::now());
        }
    }

    /// Queues a bulk frame, which no rank waits for yet. If there are several connections, it goes over
    /// one on which it delays no other frame.
    ///
    /// # Panics
    /// If `to` is not a peer.
    pub fn send_bulk(&mut self, to: Rank, header: Header) {
        // Connections are reserved for bulk only when there is bulk; without it all of them carry messages.
        if !std::mem::replace(&mut self.has_bulk, true) {
            self.peers.iter_mut().flatten().for_each(Peer::part);
        }
        self.peer(to, &header).send_bulk(header);
    }

    /// Moves what can be moved without blocking; returns true if anything was moved.
    ///
    /// # Errors
    /// If a peer is lost, has poisoned the group, or sent something that is not a frame, or if the port
    /// refuses a message. The link is then dead: call [`Link::poison`] and drop it.
    pub fn progress(&mut self, port: &mut dyn Port) -> Result<bool, Error> {
        if let Some(dead) = &self.dead {
            return Err(dead.repeat());
        }
        self.turn(port).inspect_err(|error| {
            self.dead = Some(error.repeat());
            self.tell_unreachable();
        })
    }

    /// Blocks until progress may be possible, a [`Waker`] is used, or `timeout` has passed.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let delay = self.delay(Instant::now());
        // A wake-up that came since the last round ends this wait before it begins.
        if !delay.is_zero() && !self.wake.take() {
            let rest = self.rest();
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            self.poll(timeout.min(delay), Wakers::EndIt)?;
            self.wake.take();
        }
        Ok(())
    }

    /// Returns a handle that ends [`Link::wait`] from another thread.
    pub fn waker(&self) -> Waker {
        self.wake.waker()
    }

    /// Returns the bytes and frames that have moved so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns whether `peer` has said goodbye and all of its messages have arrived.
    pub fn has_left(&self, peer: Rank) -> bool {
        self.peers[peer.index()].as_ref().is_some_and(Peer::has_left)
    }

    /// Returns whether all data between this rank and `peer` goes through memory that both share.
    pub fn shares_memory(&self, peer: Rank) -> bool {
        let peer = self.peers[peer.index()].as_ref();
        peer.is_some_and(|peer| peer.data.iter().all(|data| !data.is_socket()))
    }

    /// Returns whether `peer` runs on this rank's host, as the addresses of their connection show.
    pub fn shares_host(&self, peer: Rank) -> bool {
        self.peers[peer.index()].as_ref().is_some_and(|peer| peer.control.same_host)
    }

    /// Returns the peer that a frame goes to.
    fn peer(&mut self, to: Rank, header: &Header) -> &mut Peer {
        assert_eq!(header.kind, Frame::Data, "the link sends all but data itself");
        let peer = self.peers.get_mut(to.index()).and_then(Option::as_mut);
        peer.unwrap_or_else(|| panic!("{to} is no peer"))
    }

    /// Makes one round over all peers: control frames first, then data in and out.
    fn turn(&mut self, port: &mut dyn Port) -> Result<bool, Error> {
        let now = Instant::now();
        // Readiness is remembered between rounds, so that small messages share one system call.
        if now >= self.polled + FRESH {
            self.poll(Duration::ZERO, Wakers::Wait)?;
        }
        // Control first, of all peers: a poison explains the broken data connections that follow it.
        for peer in self.peers.iter_mut().flatten() {
            self.counters.received_bytes += peer.listen(now)? as u64;
        }
        let (mut moved, mut urgent_moved) = (false, false);
        self.first = (self.first + 1) % self.peers.len();
        for index in self.in_turn() {
            let Some(peer) = &mut self.peers[index] else { continue };
            let mut turn = Turn { port: &mut *port, counters: &mut self.counters, now };
            for data in 0..peer.data.len() {
                moved |= receive(peer, data, &mut self.ingress, &mut turn)?;
                // Bulk is written at the end of the round, once it is known what else is queued.
                if !peer.is_bulk(data) {
                    urgent_moved |= transmit(peer, data, &mut self.egress, &mut turn)?;
                }
            }
            self.counters.sent_bytes += peer.speak(now)? as u64;
            // Last, after everything that has come was read: a goodbye may be in it.
            peer.judge(self.heartbeat_timeout, now)?;
        }
        self.round = now;
        self.serve_port(now);
        self.record_urgent(if urgent_moved { Urgent::Moves } else { Urgent::Waits }, now);
        Ok(moved | urgent_moved | self.transmit_bulk(port, now)?)
    }

    /// Closes connections by which others have checked whether this rank can be reached.
    fn serve_port(&mut self, now: Instant) {
        let Some((listener, served)) = &mut self.port else { return };
        if now >= *served + PORT_EVERY {
            *served = now;
            (0..ACCEPTS_MAX).map_while(|_| listener.accept().ok()).for_each(drop);
        }
    }

    /// Tells the listener, once, which peers were silent for nearly the whole timeout. Only bytes that
    /// had come by the last whole round count: later ones are not read yet, and this process may have
    /// been suspended.
    fn tell_unreachable(&mut self) {
        let (Some(listener), Some(timeout)) = (self.unreachable.take(), self.heartbeat_timeout)
        else {
            return;
        };
        let is_silent = |peer: &&Peer| peer.silence(self.round) >= timeout * 3 / 4;
        let silent: Vec<Rank> =
            self.peers.iter().flatten().filter(is_silent).map(|peer| peer.rank).collect();
        if !silent.is_empty() {
            listener.hear(&silent);
        }
    }

    /// Returns the places of all ranks, beginning with the one whose turn it is.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, ranks) = (self.first, self.peers.len());
        (0..ranks).map(move |offset| (first + offset) % ranks)
    }

    /// Writes bulk, unless it has to give way.
    fn transmit_bulk(&mut self, port: &mut dyn Port, now: Instant) -> Result<bool, Error> {
        let goes = self.has_bulk && self.gate.wait(now).is_zero();
        let mut moved = false;
        for index in self.in_turn().filter(|_| goes) {
            let Some(peer) = &mut self.peers[index] else { continue };
            let mut turn = Turn { port: &mut *port, counters: &mut self.counters, now };
            for data in peer.bulk() {
                moved |= transmit(peer, data, &mut self.egress, &mut turn)?;
            }
        }
        Ok(moved)
    }

    /// Records whether anything other than bulk is queued; this round has found `urgent`.
    fn record_urgent(&mut self, urgent: Urgent, now: Instant) {
        // Whatever has been queued since the last round has closed the gate.
        if !self.gate.is_open() {
            let is_queued = self.peers.iter().flatten().any(Peer::is_urgent);
            self.gate.record(if is_queued { urgent } else { Urgent::None }, now);
        }
    }
}
