//! The traits of a link and of the engine above it.

use std::time::Duration;

use thinwire_wire::{Header, Rank, Tag, World};

use crate::{Error, Waker};

/// All connections of one rank, driven by one thread.
///
/// Frames between two ranks may overtake each other; their tags say which is which.
pub trait Link: Send {
    /// Returns this rank and the size of the world.
    fn world(&self) -> World;

    /// Queues a frame; its payload is fetched from the [`Port`] when it is written.
    ///
    /// # Panics
    /// If `to` is not a peer.
    fn send(&mut self, to: Rank, header: Header);

    /// Queues a frame that nobody waits for yet: where the link can, it takes a way on which it
    /// holds up no other frame.
    ///
    /// # Panics
    /// If `to` is not a peer.
    fn send_bulk(&mut self, to: Rank, header: Header) {
        self.send(to, header);
    }

    /// Moves what can be moved without blocking; true if anything was.
    ///
    /// # Errors
    /// If a peer is lost, has poisoned the group, or sent what is no frame, or if the port
    /// refuses a message. The link is then dead: call [`Link::poison`] and drop it.
    fn progress(&mut self, port: &mut dyn Port) -> Result<bool, Error>;

    /// Blocks until progress may be possible, a [`Waker`] is used, or `timeout` has passed.
    ///
    /// # Errors
    /// If the operating system refuses.
    fn wait(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Returns a handle that ends [`Link::wait`] from another thread.
    fn waker(&self) -> Waker;

    /// Returns the bytes and frames that have moved so far.
    fn counters(&self) -> Counters;

    /// Whether `peer` has said goodbye and everything it sent has arrived.
    fn has_left(&self, peer: Rank) -> bool;

    /// Tells every peer why the group is over, as well as can be done in half a second.
    ///
    /// Peers then get [`crate::Kind::Poisoned`] with the rank of `reason`, whatever happens to this
    /// rank's connections. The link is dead afterwards.
    fn poison(&mut self, reason: &Error);

    /// Says goodbye, once everything that was queued has been [`Port::sent`], and waits until
    /// the peers have done the same or `timeout` has passed.
    ///
    /// # Errors
    /// If something is still queued or does not leave in time.
    fn finish(&mut self, timeout: Duration) -> Result<(), Error>;
}

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
    /// If the engine cannot go on.
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
