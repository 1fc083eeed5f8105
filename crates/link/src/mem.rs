//! The link between threads of one process.
//!
//! The sibling that does the trivial thing: no socket, no handshake, queues with copies. It
//! behaves like [`crate::tcp`] in what the engine sees: payloads arrive in pieces, a dropped link
//! is a lost peer, poison overtakes data, the limiter holds.

mod inbox;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_wire::{HEADER_BYTES, Header, Kind as Frame, Rank, World};

use crate::mem::inbox::{Inbox, Piece};
use crate::{Bandwidth, Counters, Error, Kind, Limiter, Link, Place, Port, Waker, poison};

/// The most bytes of one pair of ranks that wait in memory.
const QUEUED_BYTES_MAX: usize = 4 << 20;
/// The most bytes of one piece, so that limits and backpressure act within a message.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// The most pieces moved per peer and direction before the engine has its turn.
const PIECES_PER_TURN: usize = 64;

/// One rank of a world that lives in one process.
#[derive(Debug)]
pub struct Mem {
    world: World,
    inboxes: Arc<[Inbox]>,
    queues: Vec<VecDeque<Outgoing>>,
    egress: Option<Limiter>,
    ingress: Option<Limiter>,
    counters: Counters,
    left: Vec<bool>,
    /// Peers whose next piece the port has no place for yet.
    refused: Vec<bool>,
    over: bool,
}

/// A queued frame and how much of its payload has gone.
#[derive(Debug)]
struct Outgoing {
    header: Header,
    gone: Option<usize>,
}

/// A world of `size` ranks, one link each, without limit.
///
/// # Panics
/// If `size` makes no world.
pub fn mesh(size: usize) -> Vec<Mem> {
    mesh_limited(size, None)
}

/// A world of `size` ranks in which each sends and receives at most `limit`.
///
/// # Panics
/// If `size` makes no world.
pub fn mesh_limited(size: usize, limit: Option<Bandwidth>) -> Vec<Mem> {
    let inboxes: Arc<[Inbox]> = (0..size).map(|_| Inbox::new(size)).collect();
    let now = Instant::now();
    let limiter = || limit.map(|rate| Limiter::new(rate, now));
    (0..size)
        .map(|rank| Mem {
            world: World::new(rank as u32, size as u32).expect("a rank below the size"),
            inboxes: inboxes.clone(),
            queues: (0..size).map(|_| VecDeque::new()).collect(),
            egress: limiter(),
            ingress: limiter(),
            counters: Counters::default(),
            left: vec![false; size],
            refused: vec![false; size],
            over: false,
        })
        .collect()
}

/// The world of one rank.
pub fn alone() -> Mem {
    mesh(1).pop().expect("one rank")
}

impl Mem {
    fn inbox(&self) -> &Inbox {
        &self.inboxes[self.world.rank().index()]
    }

    /// Sends what fits into the inbox of `to`.
    fn push(&mut self, to: Rank, port: &mut dyn Port) -> Result<bool, Error> {
        let (me, inbox) = (self.world.rank(), &self.inboxes[to.index()]);
        let mut moved = false;
        for _ in 0..PIECES_PER_TURN {
            let Some(frame) = self.queues[to.index()].front_mut() else { break };
            if self.left[to.index()] {
                return Err(Error::lost(to, format!("it has left, {} unsent", frame.header.tag)));
            }
            let overhead = if frame.gone.is_none() { HEADER_BYTES } else { 0 };
            let offset = frame.gone.unwrap_or(0);
            let length = frame.header.length as usize;
            let wanted = overhead + (length - offset).min(PIECE_BYTES_MAX);
            let grant = grant(&mut self.egress, wanted);
            if inbox.queued_bytes(me) >= QUEUED_BYTES_MAX || grant < overhead.max(1) {
                break;
            }
            let bytes = grant - overhead;
            let payload = port.outgoing(to, &frame.header.tag);
            assert_eq!(payload.len(), length, "payload of {}", frame.header.tag);
            let piece = Piece {
                header: frame.header,
                offset,
                bytes: payload[offset..offset + bytes].to_vec(),
            };
            frame.gone = Some(offset + bytes);
            let wire_bytes = bytes + overhead;
            self.counters.sent_bytes += wire_bytes as u64;
            if let Some(limiter) = &mut self.egress {
                limiter.take(wire_bytes);
            }
            inbox.push(me, piece);
            moved = true;
            if offset + bytes == length {
                let header = frame.header;
                self.queues[to.index()].pop_front();
                self.counters.sent_frames += 1;
                port.sent(to, &header.tag);
            } else if bytes > 0 {
                port.leaving(to, &frame.header.tag);
            }
        }
        Ok(moved)
    }

    /// Gives what has come from `from` to the port.
    fn pull(&mut self, from: Rank, port: &mut dyn Port) -> Result<bool, Error> {
        let mut moved = false;
        for _ in 0..PIECES_PER_TURN {
            let inbox = &self.inboxes[self.world.rank().index()];
            let Some(wanted) = inbox.next_bytes(from) else { break };
            let grant = grant(&mut self.ingress, wanted);
            let Some(piece) = inbox.take(from, grant) else { break };
            let place = port.incoming(from, &piece.header)?;
            self.refused[from.index()] = matches!(place, Place::Defer);
            let Place::Here(place) = place else {
                inbox.put_back(from, piece);
                break;
            };
            let length = piece.header.length as usize;
            assert_eq!(place.len(), length, "place of {}", piece.header.tag);
            let end = piece.offset + piece.bytes.len();
            place[piece.offset..end].copy_from_slice(&piece.bytes);
            let wire_bytes = piece.wire_bytes();
            inbox.paid(from, wire_bytes);
            self.inboxes[from.index()].signal();
            self.counters.received_bytes += wire_bytes as u64;
            if let Some(limiter) = &mut self.ingress {
                limiter.take(wire_bytes);
            }
            moved = true;
            if end == length {
                self.counters.received_frames += 1;
                port.received(from, &piece.header)?;
            } else {
                port.arriving(from, &piece.header, wire_bytes);
            }
        }
        Ok(moved)
    }

    fn leave(&mut self, reason: Option<&Error>) {
        self.over = true;
        let payload = reason.map(poison::encode);
        for peer in self.world.peers() {
            let inbox = &self.inboxes[peer.index()];
            match &payload {
                Some(payload) => inbox.poison(poison::decode(self.world.rank(), payload)),
                None => inbox.goodbye(self.world.rank()),
            }
        }
    }

    /// Returns the time until something can move without anybody's doing, if it can.
    fn delay(&mut self, now: Instant) -> Option<Duration> {
        let me = self.world.rank();
        let mut delays = Vec::new();
        for peer in self.world.peers() {
            let room = self.inboxes[peer.index()].queued_bytes(me) < QUEUED_BYTES_MAX;
            if room && !self.queues[peer.index()].is_empty() {
                delays.push(self.egress.as_mut().map(|limiter| limiter.delay(usize::MAX, now)));
            }
            let waiting = self.inboxes[me.index()].next_bytes(peer);
            if let Some(bytes) = waiting.filter(|_| !self.refused[peer.index()]) {
                delays.push(self.ingress.as_mut().map(|limiter| limiter.delay(bytes, now)));
            }
        }
        delays.into_iter().map(Option::unwrap_or_default).min()
    }
}

fn grant(limiter: &mut Option<Limiter>, wanted: usize) -> usize {
    limiter.as_mut().map_or(wanted, |limiter| limiter.grant(wanted, Instant::now()))
}

impl Link for Mem {
    fn world(&self) -> World {
        self.world
    }

    fn send(&mut self, to: Rank, header: Header) {
        assert!(to != self.world.rank() && to.index() < self.world.size(), "{to} is no peer");
        assert_eq!(header.kind, Frame::Data, "the link sends all but data itself");
        self.queues[to.index()].push_back(Outgoing { header, gone: None });
    }

    fn progress(&mut self, port: &mut dyn Port) -> Result<bool, Error> {
        let mut moved = false;
        for peer in self.world.peers() {
            if let Some(poison) = self.inbox().poisoned() {
                return Err(poison);
            }
            moved |= self.pull(peer, port)?;
            self.left[peer.index()] = match self.inbox().state_of(peer) {
                inbox::Peer::Here => false,
                inbox::Peer::Left => true,
                inbox::Peer::Lost => {
                    return Err(Error::lost(peer, "its link was dropped without a goodbye"));
                }
            };
            moved |= self.push(peer, port)?;
        }
        Ok(moved)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let delay = self.delay(Instant::now()).unwrap_or(timeout);
        self.inbox().wait(timeout.min(delay));
        Ok(())
    }

    fn waker(&self) -> Waker {
        let (inboxes, me) = (self.inboxes.clone(), self.world.rank().index());
        Waker::new(move || inboxes[me].signal())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn has_left(&self, peer: Rank) -> bool {
        self.left[peer.index()]
    }

    fn poison(&mut self, reason: &Error) {
        self.leave(Some(reason));
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), Error> {
        if let Some(peer) = self.world.peers().find(|p| !self.queues[p.index()].is_empty()) {
            return Err(Error::new(Kind::Invalid, format!("frames to {peer} are still queued")));
        }
        self.leave(None);
        let deadline = Instant::now() + timeout;
        while let Some(left) = deadline.checked_duration_since(Instant::now())
            && self.inbox().somebody_is_here(self.world.rank())
        {
            self.inbox().wait(left);
        }
        Ok(())
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        for peer in self.world.peers() {
            self.inboxes[peer.index()].lose(self.world.rank());
        }
    }
}
