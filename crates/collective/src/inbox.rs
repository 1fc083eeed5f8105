//! Messages that came before anybody here asked for them.
//!
//! A peer may be ahead by a bucket or a call. What it sends is kept, up to a limit; beyond the
//! limit the link stops reading from that peer until the runs here have caught up.

use std::collections::HashMap;

use thinwire_wire::{Header, Rank, Tag};

use crate::error::is_call;

/// The most bytes of early messages that are kept.
const EARLY_BYTES_MAX: usize = 256 << 20;

/// One early message.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) header: Header,
    pub(crate) bytes: Vec<u8>,
    complete: bool,
}

/// All early messages.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    early: HashMap<(Rank, Tag), Early>,
    bytes: usize,
}

impl Inbox {
    /// The place of a message that has begun to arrive here, if it has.
    pub(crate) fn begun(&mut self, from: Rank, tag: &Tag) -> Option<&mut [u8]> {
        self.early.get_mut(&(from, *tag)).map(|early| early.bytes.as_mut_slice())
    }

    /// A place for a new early message, or none while there is no room.
    pub(crate) fn begin(&mut self, from: Rank, header: &Header) -> Option<&mut [u8]> {
        let length = header.length as usize;
        if self.bytes > 0 && self.bytes + length > EARLY_BYTES_MAX {
            return None;
        }
        self.bytes += length;
        let early = Early { header: *header, bytes: vec![0; length], complete: false };
        Some(
            self.early
                .entry((from, header.tag))
                .insert_entry(early)
                .into_mut()
                .bytes
                .as_mut_slice(),
        )
    }

    /// Notes that a message is here whole. False if it is none of the early ones.
    pub(crate) fn complete(&mut self, from: Rank, tag: &Tag) -> bool {
        let early = self.early.get_mut(&(from, *tag));
        early.map(|early| early.complete = true).is_some()
    }

    /// Takes a message out, if it is here whole.
    pub(crate) fn take(&mut self, from: Rank, tag: &Tag) -> Option<Early> {
        if !self.early.get(&(from, *tag))?.complete {
            return None;
        }
        let early = self.early.remove(&(from, *tag))?;
        self.bytes -= early.bytes.len();
        Some(early)
    }

    /// A message of a plain call from a rank that takes it for another call than `tensor` says.
    pub(crate) fn other(&self, step: u64, tensor: u32) -> Option<(Rank, &Header)> {
        let differs = |tag: &Tag| is_call(step) && tag.step == step && tag.tensor != tensor;
        let mut early = self.early.iter();
        early.find(|((_, tag), _)| differs(tag)).map(|((from, _), early)| (*from, &early.header))
    }

    /// Whether nothing is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Kind;

    use super::*;

    #[test]
    fn there_is_no_room_beyond_the_limit_until_something_is_taken_out() {
        let mut inbox = Inbox::default();
        let tag = |message| Tag { step: 0, tensor: 0, message };
        let half = |message| Header::new(Kind::Data, 0, tag(message), EARLY_BYTES_MAX / 2);
        // One message has room in any case.
        assert!(inbox.begin(Rank(1), &Header { length: u32::MAX, ..half(0) }).is_some());
        assert!(inbox.begin(Rank(1), &half(1)).is_none());
        assert!(inbox.take(Rank(1), &tag(0)).is_none(), "it is not here whole");
        assert!(inbox.complete(Rank(1), &tag(0)));
        assert!(inbox.take(Rank(1), &tag(0)).is_some());
        assert!(inbox.begin(Rank(1), &half(1)).is_some());
        assert!(inbox.begin(Rank(2), &half(1)).is_some());
        assert!(inbox.begin(Rank(2), &half(2)).is_none());
    }
}
