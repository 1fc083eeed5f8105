//! The bytes of one exchange within one group of ranks.

use std::collections::HashMap;

use thinwire_codec::Codec;
use thinwire_schedule::Operation;
use thinwire_wire::Rank;

use crate::Transfer;

/// Largest number of tasks of a group's schedules that are all counted. For longer schedules, those of the
/// first unit represent all; messages then differ from the real ones by at most a block of the codec.
const TASKS_MAX: usize = 1 << 14;

/// The bytes that one rank of a group sends to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The receiver's index in the group.
    pub to: usize,
    /// Bytes, without headers.
    pub bytes: u64,
    /// The number of messages.
    pub messages: u64,
}

/// The bytes that the ranks of a group send each other in an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Number of ranks in the group.
    pub members: usize,
    /// For the first ranks of the group, or for all, the receivers and the bytes for each. Other ranks send
    /// like these, with receivers shifted by the same distance.
    pub(super) sent: Vec<Vec<Sent>>,
}

impl Volume {
    /// Returns the bytes of all ranks, without headers.
    pub fn bytes(&self) -> u64 {
        (0..self.members).flat_map(|at| self.of(at)).map(|sent| sent.bytes).sum()
    }

    /// Returns the messages of all ranks.
    pub fn messages(&self) -> u64 {
        (0..self.members).flat_map(|at| self.of(at)).map(|sent| sent.messages).sum()
    }

    /// Returns the messages that the rank at an index of the group sends.
    pub fn of(&self, at: usize) -> impl Iterator<Item = Sent> + '_ {
        let unit = at - at % self.sent.len();
        let further = move |sent: &Sent| Sent { to: (sent.to + unit) % self.members, ..*sent };
        self.sent[at % self.sent.len()].iter().map(further)
    }

    /// Returns whether no rank sends anything.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.iter().all(Vec::is_empty)
    }

    pub(super) fn message(bytes: u64) -> Volume {
        Volume { members: 1, sent: vec![vec![Sent { to: 0, bytes, messages: 1 }]] }
    }
}

/// Counts the bytes of a group from the transfers of its members. If the group is large, the transfers of the
/// first unit represent all.
pub(super) fn volume(
    members: usize,
    unit: usize,
    element_bytes: usize,
    transfer: impl Fn(usize) -> Transfer,
) -> Volume {
    let first = transfer(0);
    let tasks: usize = first.phases.iter().map(|phase| phase.schedule.tasks.len()).sum();
    let counted = if tasks * members <= TASKS_MAX { members } else { unit };
    let others = (1..counted).map(|at| sent(&transfer(at), element_bytes));
    Volume { members, sent: std::iter::once(sent(&first, element_bytes)).chain(others).collect() }
}

/// Counts the bytes that one rank sends to each other member of its group.
fn sent(transfer: &Transfer, element_bytes: usize) -> Vec<Sent> {
    let mut all: Vec<Sent> = Vec::new();
    let mut places: HashMap<Rank, usize> = HashMap::new();
    for phase in &transfer.phases {
        for task in &phase.schedule.tasks {
            let Operation::Send { slot, to, .. } = task.operation else { continue };
            let elements = phase.schedule.slots[slot.index()];
            let place = *places.entry(to).or_insert(all.len());
            if place == all.len() {
                all.push(Sent { to: to.index(), bytes: 0, messages: 0 });
            }
            all[place].bytes += match phase.schedule.is_raw(slot) {
                true => (element_bytes * elements) as u64,
                false => bytes(&*phase.codec, elements, element_bytes),
            };
            all[place].messages += 1;
        }
    }
    all
}

/// Returns the bytes of this many elements as they are sent.
pub(super) fn bytes(codec: &dyn Codec, elements: usize, element_bytes: usize) -> u64 {
    let bytes =
        if codec.is_raw() { element_bytes * elements } else { codec.expected_len(elements) };
    bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_send_as_the_first_unit_does() {
        let sent = |to: [usize; 2]| to.map(|to| Sent { to, bytes: 1, messages: 1 }).to_vec();
        // Units of two: within the unit, and to the same place of the next one.
        let volume = Volume { members: 6, sent: vec![sent([1, 2]), sent([0, 3])] };
        let to = |at| volume.of(at).map(|sent| sent.to).collect::<Vec<_>>();
        assert_eq!([to(0), to(1), to(2), to(5)], [[1, 2], [0, 3], [3, 4], [4, 1]]);
        assert_eq!((volume.bytes(), volume.messages()), (12, 12));
    }
}
