//! The link over TCP.
//!
//! A full mesh: between two ranks one control connection and one or more for data, each of which
//! has proven the job token. One thread drives all of them with poll(2). docs/wire.md tells what
//! goes over them.

mod agreement;
mod buffer;
mod connect;
mod connection;
mod control;
mod gate;
mod hello;
mod mesh;
mod options;
mod peer;
mod pending;
mod reader;
mod replay;
mod traffic;
mod transfer;
mod wake;
mod writer;

pub use agreement::decline;
pub use connect::connect;
pub use options::{CONNECTIONS_MAX, Encryption, Options, address_towards};
#[doc(hidden)]
pub use replay::replay;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, poll};
use thinwire_wire::{Header, Kind as Frame, Rank, World};

use crate::duplex::timespec;
use crate::tcp::gate::BulkGate;
use crate::tcp::peer::Peer;
use crate::tcp::transfer::{Counted, receive, transmit};
use crate::tcp::wake::Wake;
use crate::{Counters, Error, Kind, Limiter, Link, Port, Waker, poison};

/// Time that a poisoner waits for the others to read the reason.
const POISON_LINGER: Duration = Duration::from_millis(500);

/// Time that a result of poll is trusted, so that a message costs few system calls.
const FRESH: Duration = Duration::from_micros(20);

/// Bytes per wake-up below which, with more of a payload missing, the network is the slower side.
const MORSEL_BYTES: u64 = 64 << 10;

/// Longest rest between two polls of a slow network. A rest of half the time that the payload still
/// needs lets more come before the next poll, which costs the processor about as much as copying 50
/// kB. Socket buffers hold what comes meanwhile.
const REST_MAX: Duration = Duration::from_micros(500);

/// Shortest rest that is worth the system call.
const REST_MIN: Duration = Duration::from_micros(50);

/// One rank's connections to all others.
#[derive(Debug)]
pub struct Tcp {
    world: World,
    /// By rank; none at my own.
    peers: Vec<Option<Peer>>,
    egress: Option<Limiter>,
    ingress: Option<Limiter>,
    heartbeat_timeout: Option<Duration>,
    wake: Wake,
    counters: Counters,
    /// Peer that is served first; it changes each round, so that a rate limit is shared fairly.
    first: usize,
    /// Priority of other frames over bulk, once there is bulk.
    gate: Option<BulkGate>,
    /// When the sockets were last polled.
    polled: Instant,
    /// When the thread last slept, and how many bytes had moved by then.
    slept: (Instant, u64),
    /// Why the link is over.
    dead: Option<Error>,
}

impl Tcp {
    fn new(world: World, peers: Vec<Option<Peer>>, options: &Options) -> Result<Tcp, Error> {
        let now = Instant::now();
        let limiter = || options.limit.map(|rate| Limiter::new(rate, now));
        Ok(Tcp {
            world,
            peers,
            egress: limiter(),
            ingress: limiter(),
            heartbeat_timeout: options.heartbeat_timeout,
            wake: Wake::new()?,
            counters: Counters::default(),
            first: 0,
            gate: None,
            polled: now,
            slept: (now, 0),
            dead: None,
        })
    }

    /// Who gets a frame.
    fn peer(&mut self, to: Rank, header: &Header) -> &mut Peer {
        assert_eq!(header.kind, Frame::Data, "the link sends all but data itself");
        let peer = self.peers.get_mut(to.index()).and_then(Option::as_mut);
        peer.unwrap_or_else(|| panic!("{to} is no peer"))
    }

    /// One round over all peers: what they say first, then data in and out.
    fn turn(&mut self, port: &mut dyn Port) -> Result<bool, Error> {
        let now = Instant::now();
        // Readiness is remembered between rounds, so that small messages share one system call.
        if now >= self.polled + FRESH {
            self.poll(Duration::ZERO, false)?;
        }
        // Control first, of all peers: a poison explains the broken data connections that follow it.
        for peer in self.peers.iter_mut().flatten() {
            self.counters.received_bytes += peer.listen(now)? as u64;
        }
        let (mut moved, mut urgent_moved) = (false, false);
        self.first = (self.first + 1) % self.peers.len();
        for index in self.in_turn() {
            let Some(peer) = &mut self.peers[index] else { continue };
            let mut port = Counted { port: &mut *port, counters: &mut self.counters };
            for data in 0..peer.data.len() {
                moved |= receive(peer, data, &mut self.ingress, &mut port, now)?;
                // Bulk is written at the end of the round, once it is known what else is queued.
                if !peer.is_bulk(data) {
                    urgent_moved |= transmit(peer, data, &mut self.egress, &mut port, now)?;
                }
            }
            self.counters.sent_bytes += peer.speak(now)? as u64;
            // Last, after everything that has come was read: a goodbye may be in it.
            peer.judge(self.heartbeat_timeout, now)?;
        }
        self.record_urgent(urgent_moved, now);
        Ok(moved | urgent_moved | self.transmit_bulk(port, now)?)
    }

    /// The places of all ranks, from whose turn it is on.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, ranks) = (self.first, self.peers.len());
        (0..ranks).map(move |offset| (first + offset) % ranks)
    }

    /// Writes bulk, unless it gives way.
    fn transmit_bulk(&mut self, port: &mut dyn Port, now: Instant) -> Result<bool, Error> {
        let goes = self.gate.as_ref().is_some_and(|gate| gate.wait(now).is_zero());
        let mut moved = false;
        for index in self.in_turn().filter(|_| goes) {
            let Some(peer) = &mut self.peers[index] else { continue };
            let mut port = Counted { port: &mut *port, counters: &mut self.counters };
            for data in peer.bulk() {
                moved |= transmit(peer, data, &mut self.egress, &mut port, now)?;
            }
        }
        Ok(moved)
    }

    /// Takes note of whether anything but bulk is queued, and has just moved.
    fn record_urgent(&mut self, moved: bool, now: Instant) {
        if let Some(gate) = &mut self.gate {
            gate.record(self.peers.iter().flatten().any(Peer::is_urgent), moved, now);
        }
    }

    /// Asks the operating system what the sockets are ready for; `wakeable` if a waker may end it.
    fn poll(&mut self, timeout: Duration, wakeable: bool) -> Result<(), Error> {
        let now = Instant::now();
        // With the limit used up, polling for input would return at once again and again.
        let read = self.ingress.as_mut().is_none_or(|limit| limit.grant(usize::MAX, now) > 0);
        let mut fds = Vec::with_capacity(1 + 2 * self.peers.len());
        let mut polled = Vec::with_capacity(1 + 2 * self.peers.len());
        if wakeable {
            fds.push(self.wake.poll_fd());
        }
        for (index, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            let mut add = |fd: Option<_>, place| {
                if let Some(fd) = fd {
                    fds.push(fd);
                    polled.push((index, place));
                }
            };
            add(peer.control.poll_fd(true), None);
            for (number, data) in peer.data.iter().enumerate() {
                add(data.poll_fd(read), Some(number));
            }
        }
        match poll(&mut fds, Some(&timespec(timeout))) {
            // Interrupted is like nothing found: the caller polls again.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("cannot poll", error.into())),
        }
        let found: Vec<_> = fds[usize::from(wakeable)..].iter().map(PollFd::revents).collect();
        self.polled = Instant::now();
        let woken = wakeable && !fds[0].revents().is_empty();
        drop(fds);
        if woken {
            self.wake.drain();
        }
        for ((index, place), found) in polled.into_iter().zip(found) {
            let peer = self.peers[index].as_mut().expect("it was polled");
            match place {
                None => peer.control.polled(found),
                Some(number) => peer.data[number].polled(found),
            }
        }
        Ok(())
    }

    /// Returns the time until something can move or a heartbeat is due, if nothing comes in.
    fn delay(&mut self, now: Instant) -> Duration {
        let mut delay = Duration::MAX;
        for peer in self.peers.iter().flatten() {
            if peer.control.may_read() || peer.control.writable_bytes() > 0 {
                return Duration::ZERO;
            }
            if let Some(due) = peer.due(self.heartbeat_timeout) {
                delay = delay.min(due.saturating_duration_since(now));
            }
            for (number, data) in peer.data.iter().enumerate() {
                let (out, into) = (data.writable_bytes(), data.may_read());
                if out > 0 {
                    // Both the rate limit and the gate must let it pass.
                    let egress = self.egress.as_mut().map(|limit| limit.delay(out, now));
                    let gate = self.gate.as_ref().filter(|_| peer.is_bulk(number));
                    let waits = gate.map_or(Duration::ZERO, |gate| gate.wait(now));
                    delay = delay.min(egress.unwrap_or_default().max(waits));
                }
                // Under a limit a socket may hold input that was not polled for.
                if into || self.ingress.is_some() {
                    let ingress = self.ingress.as_mut();
                    let refill = ingress.map_or(Duration::ZERO, |l| l.delay(usize::MAX, now));
                    if into || !refill.is_zero() {
                        delay = delay.min(refill);
                    }
                }
            }
        }
        delay
    }

    /// Returns the rest before the next poll where payloads come in small parts.
    fn rest(&mut self) -> Duration {
        let now = (Instant::now(), self.counters.sent_bytes + self.counters.received_bytes);
        let before = std::mem::replace(&mut self.slept, now);
        let morsel = now.1 - before.1;
        // Nothing moved: poll sleeps anyway. Much moved: the network keeps up, and rests would cost speed.
        if !(1..MORSEL_BYTES).contains(&morsel) {
            return Duration::ZERO;
        }
        let connections = self.peers.iter().flatten().flat_map(|peer| &peer.data);
        let missing = connections.map(|data| data.reader.missing_bytes()).max().unwrap_or(0);
        let seconds = now.0.duration_since(before.0).as_secs_f64();
        let rest = Duration::from_secs_f64(seconds * missing as f64 / morsel as f64 / 2.0);
        if rest < REST_MIN { Duration::ZERO } else { rest.min(REST_MAX) }
    }

    /// Does `each` with every connection until it says that all are done, or `deadline`.
    fn linger(&mut self, deadline: Instant, mut each: impl FnMut(&mut Peer) -> bool) -> bool {
        loop {
            let mut done = true;
            for peer in self.peers.iter_mut().flatten() {
                done &= each(peer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if done || left.is_zero() || self.poll(left, false).is_err() {
                return done;
            }
        }
    }
}

impl Link for Tcp {
    fn world(&self) -> World {
        self.world
    }

    fn send(&mut self, to: Rank, header: Header) {
        self.peer(to, &header).send(header);
        if let Some(gate) = &mut self.gate {
            gate.record(true, false, Instant::now());
        }
    }

    fn send_bulk(&mut self, to: Rank, header: Header) {
        // Connections are set apart when there is bulk, since without it all of them serve messages.
        if self.gate.is_none() {
            self.peers.iter_mut().flatten().for_each(Peer::part);
            self.gate = Some(BulkGate::default());
        }
        self.peer(to, &header).send_bulk(header);
    }

    fn progress(&mut self, port: &mut dyn Port) -> Result<bool, Error> {
        if let Some(dead) = &self.dead {
            return Err(dead.repeat());
        }
        self.turn(port).inspect_err(|error| self.dead = Some(error.repeat()))
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let delay = self.delay(Instant::now());
        // A wake-up that came since the last round ends this wait before it begins.
        if !delay.is_zero() && !self.wake.take() {
            let rest = self.rest();
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
            self.poll(timeout.min(delay), true)?;
            self.wake.take();
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.wake.waker()
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn has_left(&self, peer: Rank) -> bool {
        self.peers[peer.index()].as_ref().is_some_and(Peer::has_left)
    }

    fn poison(&mut self, reason: &Error) {
        let payload = poison::encode(reason);
        for peer in self.peers.iter_mut().flatten() {
            peer.port.reason.clone_from(&payload);
            peer.tell(Frame::Poison);
        }
        // Others' frames are read and dropped from here on, which no limit should slow.
        self.ingress = None;
        // Writing is shut and the others' words are read until they hang up: closing a socket
        // that still has input would reset it, and the reset might overtake the poison.
        self.linger(Instant::now() + POISON_LINGER, |peer| {
            while peer.control.writable_bytes() > 0 {
                if peer.control.write(&mut peer.port, usize::MAX).is_err() {
                    return true;
                }
            }
            if peer.control.writer.pending_bytes() > 0 {
                return false;
            }
            peer.control.shut();
            !peer.control.discard()
        });
        self.dead = Some(reason.repeat());
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), Error> {
        let queued = |peer: &&Peer| peer.data.iter().any(|data| data.writer.has_unsent());
        if let Some(peer) = self.peers.iter().flatten().find(queued) {
            let context = format!("frames to {} are still queued", peer.rank);
            return Err(Error::new(Kind::Invalid, context));
        }
        self.ingress = None;
        let mut told = vec![false; self.peers.len()];
        self.linger(Instant::now() + timeout, |peer| {
            let mut open = false;
            // Peers may send until they have my goodbye; unread input would reset the connection.
            for data in &mut peer.data {
                // A peer that is gone shows by its end of stream.
                let _ = data.write(&mut peer.port, usize::MAX);
                open |= data.discard();
            }
            if peer.data.iter().any(|data| data.writer.pending_bytes() > 0) {
                return false;
            }
            if !std::mem::replace(&mut told[peer.rank.index()], true) {
                peer.tell(Frame::Bye);
            }
            let _ = peer.control.write(&mut peer.port, usize::MAX);
            if peer.control.writer.pending_bytes() > 0 {
                return false;
            }
            peer.connections().for_each(|connection| connection.shut());
            !(peer.control.discard() | open)
        });
        self.dead = Some(Error::new(Kind::Invalid, "the link is finished"));
        match self.peers.iter().flatten().find(|peer| !told[peer.rank.index()]) {
            Some(peer) => Err(Error::new(
                Kind::Timeout,
                format!("what was sent to {} did not leave within {timeout:.0?}", peer.rank),
            )),
            None => Ok(()),
        }
    }
}
