//! The inbox of one rank, and the state of its peers.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thinwire_wire::{HEADER_BYTES, Header, Rank};

use crate::Error;

/// A part of a message's payload.
#[derive(Debug)]
pub struct Piece {
    pub header: Header,
    pub offset: usize,
    pub bytes: Vec<u8>,
}

impl Piece {
    /// Returns the bytes that the piece would take on a wire: the first one carries the header.
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len() + if self.offset == 0 { HEADER_BYTES } else { 0 }
    }
}

/// State of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The link of the peer is alive.
    Here,
    /// The peer has said goodbye and everything has been taken.
    Left,
    /// The link of the peer was dropped and everything has been taken.
    Lost,
}

#[derive(Debug)]
struct From {
    pieces: VecDeque<Piece>,
    queued_bytes: usize,
    peer: Peer,
}

#[derive(Debug)]
struct State {
    from: Vec<From>,
    poison: Option<Error>,
    signalled: bool,
}

/// The inbox of one rank, shared by all.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    pub fn new(size: usize) -> Inbox {
        let from = || From { pieces: VecDeque::new(), queued_bytes: 0, peer: Peer::Here };
        let from = (0..size).map(|_| from()).collect();
        Inbox {
            state: Mutex::new(State { from, poison: None, signalled: false }),
            changed: Condvar::new(),
        }
    }

    pub fn push(&self, from: Rank, piece: Piece) {
        self.change(|state| {
            let from = &mut state.from[from.index()];
            from.queued_bytes += piece.wire_bytes();
            from.pieces.push_back(piece);
        });
    }

    /// Returns the bytes of the next piece on a wire, if there is one.
    pub fn next_bytes(&self, from: Rank) -> Option<usize> {
        self.lock().from[from.index()].pieces.front().map(Piece::wire_bytes)
    }

    /// The next piece, if it weighs no more than `grant`, else a part of it that does.
    pub fn take(&self, from: Rank, grant: usize) -> Option<Piece> {
        let mut state = self.lock();
        let pieces = &mut state.from[from.index()].pieces;
        let front = pieces.front_mut()?;
        if front.wire_bytes() <= grant {
            return pieces.pop_front();
        }
        let bytes = (grant + front.bytes.len()).checked_sub(front.wire_bytes())?;
        if bytes == 0 {
            return None;
        }
        let rest = front.bytes.split_off(bytes);
        let bytes = std::mem::replace(&mut front.bytes, rest);
        let piece = Piece { header: front.header, offset: front.offset, bytes };
        front.offset += piece.bytes.len();
        Some(piece)
    }

    /// The place for `piece` is not ready.
    pub fn put_back(&self, from: Rank, piece: Piece) {
        self.lock().from[from.index()].pieces.push_front(piece);
    }

    /// `bytes` from `from` need no more memory.
    pub fn paid(&self, from: Rank, bytes: usize) {
        self.lock().from[from.index()].queued_bytes -= bytes;
    }

    pub fn queued_bytes(&self, from: Rank) -> usize {
        self.lock().from[from.index()].queued_bytes
    }

    pub fn poison(&self, error: Error) {
        self.change(|state| {
            state.poison.get_or_insert(error);
        });
    }

    pub fn poisoned(&self) -> Option<Error> {
        self.lock().poison.as_ref().map(Error::repeat)
    }

    pub fn goodbye(&self, from: Rank) {
        self.change(|state| state.from[from.index()].peer = Peer::Left);
    }

    pub fn lose(&self, from: Rank) {
        self.change(|state| state.from[from.index()].peer = Peer::Lost);
    }

    /// Returns the state of `peer`; it counts as present until everything that it sent has been
    /// taken.
    pub fn state_of(&self, peer: Rank) -> Peer {
        let state = self.lock();
        let from = &state.from[peer.index()];
        if from.pieces.is_empty() { from.peer } else { Peer::Here }
    }

    pub fn somebody_is_here(&self, but: Rank) -> bool {
        let state = self.lock();
        let mut from = state.from.iter().enumerate();
        from.any(|(rank, from)| rank != but.index() && from.peer == Peer::Here)
    }

    /// Ends the wait in progress, or else the next one.
    pub fn signal(&self) {
        self.change(|_| ());
    }

    /// Blocks until something has changed since the last wait.
    pub fn wait(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.signalled {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            state = self.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
        state.signalled = false;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.signalled = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}
