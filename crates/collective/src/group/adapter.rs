//! The adapter between runs and the link's port.
//!
//! The link fetches messages from the runs under way, and leaves messages in them, or in the inbox if they
//! come early.

use thinwire_link::{Place, Port};
use thinwire_wire::{HEADER_BYTES, Header, Kind, Rank, Tag};

use crate::Buffer;
use crate::buffer::Pool;
use crate::error::{Error, counted, different_steps, is_call, is_training};
use crate::inbox::Inbox;
use crate::run::{Asked, Run};

/// The runs under way as a port of the link.
pub(crate) struct PortAdapter<'a, V> {
    pub(super) runs: &'a mut [Run<V>],
    pub(super) inbox: &'a mut Inbox,
    pub(super) pool: &'a mut Pool,
    pub(super) epoch: u32,
    /// All calls up to this step have begun: a call that has no run is over.
    pub(super) begun: u64,
    /// The tensor of exchanges that other ranks begin, and the last message of one that waits for this rank.
    pub(super) answered: Option<u32>,
    pub(super) asked: Option<Asked>,
    pub(super) refusal: Option<Error>,
    pub(super) progress: Progress,
}

/// The bytes that moved in one call of the link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Whether any bytes were of a run under way.
    pub(super) awaited: bool,
    /// The number of bytes that no run here has asked for yet.
    pub(super) early_bytes: usize,
}

impl<'a, V: Buffer> PortAdapter<'a, V> {
    /// Returns the adapter of epoch 0.
    pub(crate) fn new(
        runs: &'a mut [Run<V>],
        inbox: &'a mut Inbox,
        pool: &'a mut Pool,
        begun: u64,
    ) -> PortAdapter<'a, V> {
        let progress = Progress::default();
        let (answered, asked, refusal) = (None, None, None);
        PortAdapter { runs, inbox, pool, epoch: 0, begun, answered, asked, refusal, progress }
    }

    fn record(&mut self, tag: &Tag, bytes: usize) {
        match self.runs.iter().any(|run| run.owns(tag)) {
            true => self.progress.awaited = true,
            false => self.progress.early_bytes += bytes,
        }
    }

    fn corrupt(&mut self, from: Rank, detail: String) -> thinwire_link::Error {
        self.refuse(from, Error::corrupt("receive", None, Some(from), detail))
    }

    fn refuse(&mut self, from: Rank, error: Error) -> thinwire_link::Error {
        let text = error.to_string();
        self.refusal = Some(error);
        thinwire_link::Error::new(thinwire_link::Kind::Corrupt, text).with_rank(from)
    }
}

impl<V: Buffer> Port for PortAdapter<'_, V> {
    fn outgoing(&self, to: Rank, tag: &Tag) -> &[u8] {
        let run = self.runs.iter().find(|run| run.owns(tag));
        run.map_or(&[], |run| run.outgoing(to, tag.message))
    }

    fn leaving(&mut self, _to: Rank, tag: &Tag) {
        self.record(tag, 0);
    }

    fn sent(&mut self, to: Rank, tag: &Tag) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.owns(tag)) {
            self.progress.awaited = true;
            run.sent(to, tag.message, self.pool);
        }
    }

    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, thinwire_link::Error> {
        if header.kind != Kind::Data || header.epoch != self.epoch {
            let (found, expected) = (header.epoch, self.epoch);
            let detail = format!("{from} sent a frame of epoch {found}, expected {expected}");
            return Err(self.corrupt(from, detail));
        }
        // Two connections may bring one message; the inbox takes the first.
        if self.inbox.is_complete(from, &header.tag) {
            let detail = format!("{from} sent message {} twice", header.tag.message);
            return Err(self.corrupt(from, detail));
        }
        // A message that began to arrive early ends in the inbox, even if its run has begun since.
        if self.inbox.begun(from, &header.tag).is_some() {
            let place = self.inbox.begun(from, &header.tag).expect("it was there just now");
            return Ok(Place::Here(place));
        }
        let Some(index) = self.runs.iter().position(|run| run.owns(&header.tag)) else {
            // It goes straight to its place once this rank takes part, and takes no memory before.
            if self.answered == Some(header.tag.tensor)
                && let Some(count) = counted(header.tag.step)
            {
                self.asked = Some(Asked { from, count });
                return Ok(Place::Defer);
            }
            // Calls are made in one order everywhere: none that is over can still be awaited.
            if is_call(header.tag.step) && header.tag.step <= self.begun {
                let detail =
                    format!("calls differ: {from} is still in a call that has ended on this rank");
                return Err(self.corrupt(from, detail));
            }
            // All ranks take part in every step: one that is at an earlier step was never in this one.
            let steps = self.runs.iter().map(|run| run.address.step);
            let newest = steps.filter(|step| is_training(*step)).max();
            if let Some(mine) = newest.filter(|mine| header.tag.step < *mine) {
                return Err(self.corrupt(from, different_steps(from, header.tag.step, mine)));
            }
            return Ok(self.inbox.begin(from, header).map_or(Place::Defer, Place::Here));
        };
        let fault = match self.runs[index].fault(from, header) {
            Some(error) => error,
            None => return Ok(Place::Here(self.runs[index].place(from, header, self.pool))),
        };
        Err(self.refuse(from, fault))
    }

    fn arriving(&mut self, _from: Rank, header: &Header, bytes: usize) {
        self.record(&header.tag, bytes);
    }

    fn received(&mut self, from: Rank, header: &Header) -> Result<(), thinwire_link::Error> {
        if self.inbox.complete(from, &header.tag) {
            let Some(index) = self.runs.iter().position(|run| run.owns(&header.tag)) else {
                self.progress.early_bytes += header.length as usize + HEADER_BYTES;
                return Ok(());
            };
            self.progress.awaited = true;
            let Some(early) = self.inbox.take(from, &header.tag) else { return Ok(()) };
            let run = &mut self.runs[index];
            let result = deliver(run, from, &early.header, &early.bytes, self.pool);
            return result.map_err(|error| self.refuse(from, error));
        }
        if let Some(run) = self.runs.iter_mut().find(|run| run.owns(&header.tag)) {
            self.progress.awaited = true;
            return run.received(from, header).map_err(|error| self.refuse(from, error));
        }
        Ok(())
    }
}

/// Gives a run a message that came before it began.
pub(super) fn deliver<V: Buffer>(
    run: &mut Run<V>,
    from: Rank,
    header: &Header,
    bytes: &[u8],
    pool: &mut Pool,
) -> Result<(), Error> {
    if let Some(fault) = run.fault(from, header) {
        return Err(fault);
    }
    run.place(from, header, pool).copy_from_slice(bytes);
    run.received(from, header)
}
