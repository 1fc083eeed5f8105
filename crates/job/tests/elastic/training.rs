//! A training without a model: in every step each rank sends a byte to all others, which says whether it wants
//! the run to end after this step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thinwire_job::elastic::{Membership, Run};
use thinwire_link::{Error, Kind, Link, Place, Port};
use thinwire_wire::{Header, Kind as Frame, Rank, Tag};

/// Bytes that were sent and received, by step.
#[derive(Default)]
struct Bytes {
    sent: BTreeMap<u64, [u8; 1]>,
    /// Frames that are still queued.
    queued: usize,
    received: BTreeMap<(u64, Rank), [u8; 1]>,
    complete: BTreeMap<u64, usize>,
}

impl Port for Bytes {
    fn outgoing(&self, _to: Rank, tag: &Tag) -> &[u8] {
        &self.sent[&tag.step]
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {
        self.queued -= 1;
    }

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        Ok(Place::Here(self.received.entry((header.tag.step, from)).or_default()))
    }

    fn received(&mut self, _from: Rank, header: &Header) -> Result<(), Error> {
        *self.complete.entry(header.tag.step).or_default() += 1;
        Ok(())
    }
}

/// A run that is under way.
pub struct Training {
    link: Link,
    bytes: Bytes,
    is_aborted: Arc<AtomicBool>,
}

impl Training {
    pub fn new(run: Run, membership: &Membership) -> Training {
        let is_aborted = Arc::new(AtomicBool::new(false));
        let (flag, waker) = (Arc::clone(&is_aborted), run.link.waker());
        membership.on_abort(move || {
            flag.store(true, Ordering::Relaxed);
            waker.wake();
        });
        Training { link: run.link, bytes: Bytes::default(), is_aborted }
    }

    /// Does a step; true if any rank wants the run to end after it.
    pub fn step(&mut self, step: u64, wants_end: bool) -> Result<bool, Error> {
        self.bytes.sent.insert(step, [u8::from(wants_end)]);
        let world = self.link.world();
        for peer in world.peers() {
            let tag = Tag { step, tensor: 0, message: 0 };
            self.link.send(peer, Header::new(Frame::Data, self.link.epoch(), tag, 1));
            self.bytes.queued += 1;
        }
        let peers = world.size() - 1;
        let is_complete = |bytes: &Bytes| {
            bytes.queued == 0 && bytes.complete.get(&step).copied().unwrap_or(0) == peers
        };
        while !is_complete(&self.bytes) {
            if self.is_aborted.load(Ordering::Relaxed) {
                return Err(Error::new(Kind::Timeout, "the run was aborted"));
            }
            if !self.link.progress(&mut self.bytes)? {
                self.link.wait(Duration::from_secs(1))?;
            }
        }
        let others = world.peers().any(|peer| self.bytes.received[&(step, peer)] == [1]);
        Ok(wants_end || others)
    }

    /// Ends the run because of `error`, and tells the others.
    pub fn fail(mut self, error: &Error) {
        self.link.poison(error);
    }

    /// Ends the run after a step that all have done.
    pub fn finish(mut self) {
        let _ = self.link.finish(Duration::from_secs(5));
    }
}
