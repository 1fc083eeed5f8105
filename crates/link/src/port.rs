//! The engine above a link, as the link sees it.

use thinwire_wire::{Header, Rank, Tag};

use crate::Error;

/// Destination of a payload.
#[derive(Debug)]
pub enum Place<'a> {
    /// Into these bytes, exactly as many as the header says.
    Here(&'a mut [u8]),
    /// Not yet: leave it, stop reading this connection, ask again at the next progress.
    Defer,
}

/// The engine as a link sees it.
pub trait Port {
    /// The payload of a queued frame: the same bytes each time until it is sent.
    fn outgoing(&self, to: Rank, tag: &Tag) -> &[u8];

    /// A part of the frame was sent.
    fn leaving(&mut self, _to: Rank, _tag: &Tag) {}

    /// The frame has left: the link needs neither the payload nor another turn for it.
    fn sent(&mut self, to: Rank, tag: &Tag);

    /// The place of a payload, asked for once or more per frame: the same place each time.
    ///
    /// # Errors
    /// If nobody expects such a message.
    fn incoming(&mut self, from: Rank, header: &Header) -> Result<Place<'_>, Error>;

    /// `bytes` more of an incomplete payload were received.
    fn arriving(&mut self, _from: Rank, _header: &Header, _bytes: usize) {}

    /// The payload is complete.
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
