//! The schedule: one rank's tasks and their dependencies.
//!
//! The laws that every schedule of this crate keeps, and that [`verify`](crate::verify()) checks:
//!
//! - A task waits only for tasks before it in the list; the list's order is the order of preference
//!   among tasks that are ready. Results come last: only results wait for them.
//! - Dependencies are complete: two tasks that touch the same values or the same slot, one of them
//!   writing, are ordered by `after`, so any order that respects `after` gives the same bits.
//! - A slot is filled once, by an encode or a recv, and holds as many elements as its range.
//! - An element of `values` is encoded at most once, so that its residual is added at most once.
//! - Every send has one recv at its target under the same message number, and the reverse.
//!
//! One more law lets a codec without encoding (raw f32) run without copies:
//!
//! - **In place**: if [`Schedule::in_place`] holds, a slot that was encoded here may be a view of the
//!   values it was encoded from, read as late as when its sends are written to the network, and a recv
//!   whose slot is decoded may write those values as soon as its bytes arrive. This is safe because
//!   such a range is final for this rank once it has been encoded: nothing is merged into it any more,
//!   and the bytes that are decoded into it were made from this very contribution, so they cannot
//!   arrive before the contribution has left. [`simulate`](crate::simulate) runs schedules this way
//!   with its `Encoding::InPlace`.

use std::collections::BTreeMap;
use std::ops::Range;

use thinwire_wire::Rank;

/// An encoded byte buffer, local to a rank: an index into [`Schedule::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// Returns the slot as an index into a vector of per-slot values.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One of the five operations of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Encodes `values[range]` (and its residual, if there is one) into `slot`.
    Encode {
        /// The elements that are encoded.
        range: Range<usize>,
        /// The slot for the encoded bytes.
        slot: Slot,
    },
    /// Adds the decoded content of `slot` to `values[range]`.
    Merge {
        /// The encoded bytes.
        slot: Slot,
        /// The elements that are added to.
        range: Range<usize>,
    },
    /// Sets `values[range]` to the decoded content of `slot`.
    Decode {
        /// The encoded bytes.
        slot: Slot,
        /// The elements that are set.
        range: Range<usize>,
    },
    /// Sends the bytes of `slot`. The task is done when the bytes need not be kept any longer.
    Send {
        /// The encoded bytes.
        slot: Slot,
        /// The receiver.
        to: Rank,
        /// The message's number: used once between a sender and a receiver.
        message: u32,
    },
    /// Receives the bytes of `slot`.
    Recv {
        /// The slot for the encoded bytes.
        slot: Slot,
        /// The sender.
        from: Rank,
        /// The message's number: used once between a sender and a receiver.
        message: u32,
    },
}

impl Operation {
    /// Returns the one slot that the operation reads or writes.
    pub const fn slot(&self) -> Slot {
        match self {
            Operation::Encode { slot, .. }
            | Operation::Merge { slot, .. }
            | Operation::Decode { slot, .. }
            | Operation::Send { slot, .. }
            | Operation::Recv { slot, .. } => *slot,
        }
    }

    /// Returns the elements of `values` that the operation reads or writes.
    pub const fn range(&self) -> Option<&Range<usize>> {
        match self {
            Operation::Encode { range, .. }
            | Operation::Merge { range, .. }
            | Operation::Decode { range, .. } => Some(range),
            Operation::Send { .. } | Operation::Recv { .. } => None,
        }
    }

    /// Returns whether the operation fills its slot.
    pub const fn fills(&self) -> bool {
        matches!(self, Operation::Encode { .. } | Operation::Recv { .. })
    }
}

/// An operation and its dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The operation.
    pub operation: Operation,
    /// The tasks that must be done before, as indices of earlier tasks.
    pub after: Vec<u32>,
    /// Whether the task writes the outcome. Results may be deferred: only results wait for results.
    pub result: bool,
}

/// One rank's share of a collective operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The tasks of the rank, in order of preference.
    pub tasks: Vec<Task>,
    /// For every slot, the number of elements that are encoded in it.
    pub slots: Vec<usize>,
    /// The first `raw` slots hold elements as they are, whatever the codec.
    pub raw: usize,
    /// The element from which a codec's random numbers are counted.
    pub origin: usize,
}

impl Schedule {
    /// Returns the schedule with its peers numbered as ranks of a larger world: `members[r]` instead of r.
    #[must_use]
    pub fn among(mut self, members: &[Rank]) -> Schedule {
        for task in &mut self.tasks {
            if let Operation::Send { to: peer, .. } | Operation::Recv { from: peer, .. } =
                &mut task.operation
            {
                *peer = members[peer.index()];
            }
        }
        self
    }

    /// Returns whether a slot holds elements as they are, whatever the codec.
    pub const fn is_raw(&self, slot: Slot) -> bool {
        slot.index() < self.raw
    }

    /// Returns the bytes of every slot; `encoded_len` returns the bytes of a number of elements.
    pub fn bytes(&self, encoded_len: &dyn Fn(usize) -> usize) -> Vec<usize> {
        let bytes = |(slot, elements): (usize, &usize)| match slot < self.raw {
            true => elements * size_of::<f32>(),
            false => encoded_len(*elements),
        };
        self.slots.iter().enumerate().map(bytes).collect()
    }

    /// Returns whether slots may be views of the values that they were encoded from (see the module's
    /// laws): nothing is merged into elements that have been encoded before.
    pub fn in_place(&self) -> bool {
        let mut encoded = BTreeMap::new();
        self.tasks.iter().all(|task| match &task.operation {
            Operation::Encode { range, .. } => {
                encoded.insert(range.start, range.end);
                true
            }
            Operation::Merge { range, .. } => {
                let nearest = encoded.range(..range.end).next_back();
                nearest.is_none_or(|(_, end)| *end <= range.start)
            }
            _ => true,
        })
    }
}
