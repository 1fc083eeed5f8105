//! The engine above a link, as the link sees it.

use thinwire_wire::{Header, Rank, Tag};

use crate::Error;

/// Destination of a payload.
#[derive(Debug)]
pub enum Place<'a> {
    /// The payload is read into these bytes; there are exactly as many as the header announces.
    Here(&'a mut [u8]),
    /// There is no buffer for the payload yet: the link stops reading this connection, and asks again in
    /// the next call of [`Link::progress`](crate::Link::progress).
    Defer,
}

/// The engine as a link sees it.
pub trait Port {
    /// Returns the payload of a queued frame: the same bytes each time until it is sent.
    fn outgoing(&self, to: Rank, tag: &Tag) -> &[u8];

    /// Called when a part of the frame was sent.
    fn leaving(&mut self, _to: Rank, _tag: &Tag) {}

    /// Called when the whole frame has left. From then on the link no longer needs the payload, and the
    /// frame needs no further call of [`Link::progress`](crate::Link::progress).
    fn sent(&mut self, to: Rank, tag: &Tag);

    /// Returns the place for a payload. It is called once or more per frame, and returns the same place
    /// each time.
    ///
    /// # Errors
    /// If no such message is expected.
    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error>;

    /// Called when `bytes` more of an incomplete payload were received.
    fn arriving(&mut self, _from: Rank, _header: &Header, _bytes: usize) {}

    /// Called when the payload is complete.
    ///
    /// # Errors
    /// If the engine cannot continue.
    fn received(&mut self, from: Rank, header: &Header) -> Result<(), Error>;
}

/// Bytes and frames that one rank has moved, all peers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes written, headers and encryption included.
    pub sent_bytes: u64,
    /// Bytes read, headers and encryption included.
    pub received_bytes: u64,
    /// Data frames written.
    pub sent_frames: u64,
    /// Data frames read.
    pub received_frames: u64,
}
