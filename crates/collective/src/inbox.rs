//! Messages that came before this rank has asked for them.
//!
//! A peer may be ahead by a bucket or a call. Early messages are kept, up to a limit; beyond the limit
//! the link stops reading from that peer until the runs here have caught up. Law: an entry is charged for
//! at least the memory that it takes. Whatever peers send, all entries together are charged for at most
//! twice [`EARLY_BYTES_MAX`] and one message.

use std::collections::HashMap;

use thinwire_wire::{Header, Rank, Tag};

use crate::error::{is_call, is_training};

/// Charged bytes that all peers share. Beyond that, every peer has an equal share of as much again,
/// so that no peer can take the others' room.
pub(crate) const EARLY_BYTES_MAX: usize = 256 << 20;

/// The charge of a message in addition to its payload: a growing table holds up to 3.5 places per
/// entry.
pub(crate) const ENTRY_BYTES: usize = 512;

/// One early message.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) header: Header,
    pub(crate) bytes: Vec<u8>,
    complete: bool,
}

/// The charges of one peer's early messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) messages: usize,
    /// The bytes of payloads, and [`ENTRY_BYTES`] for each.
    pub(crate) charged_bytes: usize,
}

/// All early messages.
#[derive(Debug)]
pub(crate) struct Inbox {
    early: HashMap<(Rank, Tag), Early>,
    /// By rank.
    held: Vec<Held>,
    charged_bytes: usize,
    /// The charge that every peer may reach in any case.
    share_bytes: usize,
    /// By rank: whether its last message found no room.
    full: Vec<bool>,
}

impl Inbox {
    /// Returns the empty inbox of one of `ranks` ranks.
    pub(crate) fn new(ranks: usize) -> Inbox {
        Inbox {
            early: HashMap::new(),
            held: vec![Held::default(); ranks],
            charged_bytes: 0,
            share_bytes: EARLY_BYTES_MAX / ranks,
            full: vec![false; ranks],
        }
    }

    /// Returns the place of a message that has begun to arrive here, if it has.
    pub(crate) fn begun(&mut self, from: Rank, tag: &Tag) -> Option<&mut [u8]> {
        self.early.get_mut(&(from, *tag)).map(|early| early.bytes.as_mut_slice())
    }

    /// Returns whether a message is complete.
    pub(crate) fn is_complete(&self, from: Rank, tag: &Tag) -> bool {
        self.early.get(&(from, *tag)).is_some_and(|early| early.complete)
    }

    /// Returns a place for a new early message; `None` while there is no room.
    pub(crate) fn begin(&mut self, from: Rank, header: &Header) -> Option<&mut [u8]> {
        let length = header.length as usize;
        let charge = length + ENTRY_BYTES;
        let held = &mut self.held[from.index()];
        let has_room = self.charged_bytes == 0
            || self.charged_bytes + charge <= EARLY_BYTES_MAX
            || held.charged_bytes + charge <= self.share_bytes;
        self.full[from.index()] = !has_room;
        if !has_room {
            return None;
        }
        self.charged_bytes += charge;
        held.charged_bytes += charge;
        held.messages += 1;
        let early = Early { header: *header, bytes: vec![0; length], complete: false };
        let entry = self.early.entry((from, header.tag)).insert_entry(early);
        Some(entry.into_mut().bytes.as_mut_slice())
    }

    /// Records that a message is complete. Returns false if it is not one of the early ones.
    pub(crate) fn complete(&mut self, from: Rank, tag: &Tag) -> bool {
        let early = self.early.get_mut(&(from, *tag));
        early.map(|early| early.complete = true).is_some()
    }

    /// Takes out a message, if it is complete.
    pub(crate) fn take(&mut self, from: Rank, tag: &Tag) -> Option<Early> {
        if !self.is_complete(from, tag) {
            return None;
        }
        let early = self.early.remove(&(from, *tag))?;
        let charge = early.bytes.len() + ENTRY_BYTES;
        self.charged_bytes -= charge;
        self.full[from.index()] = false;
        let held = &mut self.held[from.index()];
        held.charged_bytes -= charge;
        held.messages -= 1;
        Some(early)
    }

    /// Returns the charges of a rank whose messages find no more room.
    pub(crate) fn full_of(&self, rank: Rank) -> Option<Held> {
        self.full[rank.index()].then_some(self.held[rank.index()])
    }

    /// Returns a message of a plain call whose sender makes another call than `tensor` at this step.
    pub(crate) fn other(&self, step: u64, tensor: u32) -> Option<(Rank, &Header)> {
        let differs = |tag: &Tag| is_call(step) && tag.step == step && tag.tensor != tensor;
        let mut early = self.early.iter();
        early.find(|((_, tag), _)| differs(tag)).map(|((from, _), early)| (*from, &early.header))
    }

    /// Returns a rank that has sent a message of an earlier step of training than `step`, and that step.
    pub(crate) fn behind(&self, step: u64) -> Option<(Rank, u64)> {
        if !is_training(step) {
            return None;
        }
        let tags = self.early.keys().map(|(from, tag)| (*from, tag.step));
        tags.filter(|(_, early)| *early < step).min_by_key(|(_, early)| *early)
    }

    /// Returns the step of training of a rank's first early message after `step`.
    pub(crate) fn ahead(&self, rank: Rank, step: u64) -> Option<u64> {
        let tags = self.early.keys().filter(|(from, _)| *from == rank).map(|(_, tag)| tag.step);
        tags.filter(|early| is_training(*early) && *early > step).min()
    }

    /// Returns a rank that has sent a message of a plain call with this address and a count above `begun`.
    pub(crate) fn caller(&self, tensor: u32, begun: u64) -> Option<Rank> {
        let is_later = |tag: &Tag| is_call(tag.step) && tag.step > begun && tag.tensor == tensor;
        self.early.keys().find(|(_, tag)| is_later(tag)).map(|(from, _)| *from)
    }

    /// Returns whether nothing is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// Returns the charge of all entries.
    pub(crate) fn charged_bytes(&self) -> usize {
        self.charged_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_wire::Kind;

    use super::*;

    fn header(message: u32, length: usize) -> Header {
        Header::new(Kind::Data, 0, Tag { step: 0, tensor: 0, message }, length)
    }

    /// The number of messages of `length` bytes from `rank` that find room.
    fn fill(inbox: &mut Inbox, rank: Rank, length: usize) -> usize {
        let mut numbers = 0..;
        numbers.find(|number| inbox.begin(rank, &header(*number, length)).is_none()).unwrap()
            as usize
    }

    #[test]
    fn there_is_no_room_beyond_the_limit_until_something_is_taken_out() {
        let mut inbox = Inbox::new(2);
        // One message has room in any case.
        let large = Header { length: u32::MAX, ..header(0, 0) };
        assert!(inbox.begin(Rank(1), &large).is_some());
        assert!(inbox.begin(Rank(1), &header(1, 1)).is_none());
        assert!(inbox.full_of(Rank(1)).is_some());
        assert!(inbox.take(Rank(1), &large.tag).is_none(), "it is not here whole");
        assert!(inbox.complete(Rank(1), &large.tag));
        assert!(inbox.take(Rank(1), &large.tag).is_some());
        assert!(inbox.begin(Rank(1), &header(1, EARLY_BYTES_MAX / 2)).is_some());
        assert_eq!(inbox.full_of(Rank(1)), None);
        assert!(inbox.begin(Rank(1), &header(2, EARLY_BYTES_MAX / 2)).is_none());
    }

    #[test]
    fn an_entry_is_charged_for_the_memory_that_it_takes() {
        // A table of hashbrown is at most 7/8 full, doubles, and while it does, is there twice.
        let place = size_of::<((Rank, Tag), Early)>() + 1;
        assert!(ENTRY_BYTES * 2 >= place * 7, "{place} bytes of a place, {ENTRY_BYTES} charged");
    }

    #[test]
    fn empty_messages_fill_the_inbox() {
        let mut inbox = Inbox::new(2);
        assert_eq!(fill(&mut inbox, Rank(1), 0), EARLY_BYTES_MAX / ENTRY_BYTES);
    }

    #[test]
    fn every_peer_has_its_share_whatever_another_has_sent() {
        for ranks in [3, 64, 4096] {
            let mut inbox = Inbox::new(ranks);
            let most = fill(&mut inbox, Rank(1), 8);
            let share = fill(&mut inbox, Rank(2), 8);
            assert!(share >= EARLY_BYTES_MAX / ranks / (ENTRY_BYTES + 8), "{share}");
            assert!(share > 0 && most > share);
        }
    }

    #[test]
    fn ten_thousand_tensors_of_eight_elements_from_each_of_eight_ranks_have_room() {
        let mut inbox = Inbox::new(9);
        for (rank, number) in (1..9).flat_map(|rank| (0..10_000).map(move |number| (rank, number)))
        {
            assert!(inbox.begin(Rank(rank), &header(number, 32)).is_some());
        }
    }

    proptest! {
        #[test]
        fn what_is_charged_is_bounded_and_given_back(
            messages in prop::collection::vec((1_u32..4, 0_u32..6, 0..EARLY_BYTES_MAX / 2), 0..60),
        ) {
            let mut inbox = Inbox::new(4);
            for (rank, number, length) in messages {
                let (from, header) = (Rank(rank), header(number, length));
                if inbox.is_complete(from, &header.tag) {
                    inbox.take(from, &header.tag).unwrap();
                } else if inbox.begin(from, &header).is_some() {
                    inbox.complete(from, &header.tag);
                }
                prop_assert!(inbox.charged_bytes() <= 2 * EARLY_BYTES_MAX);
            }
            for (from, tag) in inbox.early.keys().copied().collect::<Vec<_>>() {
                inbox.take(from, &tag).unwrap();
            }
            prop_assert_eq!(inbox.charged_bytes(), 0);
            prop_assert!(inbox.held.iter().all(|held| *held == Held::default()));
        }
    }
}
