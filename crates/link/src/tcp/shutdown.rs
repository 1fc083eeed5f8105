//! The end of a link: poison, which tells every peer why, and goodbye.

use std::time::{Duration, Instant};

use thinwire_wire::Kind as Frame;

use crate::tcp::Link;
use crate::tcp::peer::Peer;
use crate::tcp::wake::Wakers;
use crate::{Error, Kind, poison};

/// Time that a poisoner waits for the others to read the reason.
const POISON_LINGER: Duration = Duration::from_millis(500);

impl Link {
    /// Tells every peer why the group has ended, as far as is possible within half a second.
    ///
    /// Peers then get [`crate::Kind::Poisoned`] with the rank of `reason`, whatever happens to this
    /// rank's connections. The link is dead afterwards.
    pub fn poison(&mut self, reason: &Error) {
        self.tell_unreachable();
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

    /// Says goodbye, once everything that was queued has been [`Port::sent`](crate::Port::sent), and
    /// waits until the peers have done the same or `timeout` has passed.
    ///
    /// # Errors
    /// If something is still queued or does not leave in time.
    pub fn finish(&mut self, timeout: Duration) -> Result<(), Error> {
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

    /// Calls `each` on every connection until it returns true for all, or until `deadline`.
    fn linger(&mut self, deadline: Instant, mut each: impl FnMut(&mut Peer) -> bool) -> bool {
        loop {
            let mut done = true;
            for peer in self.peers.iter_mut().flatten() {
                done &= each(peer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if done || left.is_zero() || self.poll(left, Wakers::Wait).is_err() {
                return done;
            }
        }
    }
}
