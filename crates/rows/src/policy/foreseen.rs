//! Foreseen: keeps the rows with the nearest next use, given the batches to come.
//!
//! Sampling is a function of seed, pass and batch, so a loader knows every access in advance. The caller
//! tells the policy future batches; each lookup consumes one. Law: if all batches are told, hits equal
//! [`belady`](crate::belady).
//!
//! A row with unknown next use, beyond the batches told, is replaced first, least recently used first.
//! Lookups that differ from the batches told only cost hits.

use std::collections::VecDeque;

use super::{Links, Policy};
use crate::mix::RowMap;

/// Number of no access.
const NONE: u64 = u64::MAX;

/// Slot of a row without one.
const NO_SLOT: u32 = u32::MAX;

/// Policy that replaces the row with the furthest next use, and admits no row whose next use is further.
#[derive(Clone, Debug)]
pub struct Foreseen {
    slots: u32,
    used: u32,
    batches_max: u32,
    /// Ring of slots for each batch that may be told, with the rows that are next used in it. The last ring
    /// is for slots with unknown next use.
    links: Links,
    rows: Vec<u64>,
    known: RowMap<Known>,
    accesses: VecDeque<Access>,
    /// Number of the first element of `accesses`.
    first_access: u64,
    /// Number of the first access after each told batch.
    ends: VecDeque<u64>,
    /// Number of the first element of `ends`.
    first_batch: u64,
    /// Latest batch that is known as the next use of a slot.
    furthest: u64,
}

/// Row that has a slot or a future use.
#[derive(Clone, Copy, Debug)]
struct Known {
    slot: u32,
    /// Numbers of the next access and of the last known one.
    next: u64,
    last: u64,
}

/// Access of a batch to a row.
#[derive(Clone, Copy, Debug)]
struct Access {
    row: u64,
    batch: u64,
    /// Number of the next access to the same row.
    next: u64,
}

impl Foreseen {
    /// Creates a policy for this many slots that can be told at most `batches_max` batches in advance.
    pub fn new(slots: u32, batches_max: u32) -> Foreseen {
        Foreseen {
            slots,
            used: 0,
            batches_max,
            links: Links::new(slots + batches_max + 1),
            rows: vec![0; slots as usize],
            known: RowMap::default(),
            accesses: VecDeque::new(),
            first_access: 0,
            ends: VecDeque::new(),
            first_batch: 0,
            furthest: 0,
        }
    }

    /// Tells the policy the next future batch. Returns false without effect if `batches_max` batches are told
    /// already; a lookup makes room for one.
    pub fn tell(&mut self, ids: &[u64]) -> bool {
        if self.ends.len() == self.batches_max as usize {
            return false;
        }
        let batch = self.first_batch + self.ends.len() as u64;
        ids.iter().for_each(|row| self.tell_access(*row, batch));
        self.ends.push_back(self.next_access());
        true
    }

    /// Returns the number of batches that were told and that no lookup has consumed yet.
    pub fn batches_ahead(&self) -> usize {
        self.ends.len()
    }

    fn tell_access(&mut self, row: u64, batch: u64) {
        let number = self.next_access();
        let fresh = Known { slot: NO_SLOT, next: NONE, last: NONE };
        let known = self.known.entry(row).or_insert(fresh);
        if known.next == NONE {
            (known.next, known.last) = (number, number);
            let slot = known.slot;
            if slot != NO_SLOT {
                self.place(slot, Some(batch));
            }
        } else {
            let last = &mut self.accesses[(known.last - self.first_access) as usize];
            if last.batch == batch {
                return;
            }
            last.next = number;
            known.last = number;
        }
        self.accesses.push_back(Access { row, batch, next: NONE });
    }

    fn next_access(&self) -> u64 {
        self.first_access + self.accesses.len() as u64
    }

    /// Returns the batch of an access, if the access exists.
    fn batch_of(&self, access: u64) -> Option<u64> {
        let at = access.wrapping_sub(self.first_access);
        (access != NONE).then(|| self.accesses[at as usize].batch)
    }

    /// Puts a slot in the ring of the batch of its next use.
    fn place(&mut self, slot: u32, batch: Option<u64>) {
        self.furthest = self.furthest.max(batch.unwrap_or(0));
        let ring = self.ring(batch);
        self.links.put_after(ring, slot);
    }

    fn ring(&self, batch: Option<u64>) -> u32 {
        let of = |batch| (batch % u64::from(self.batches_max)) as u32;
        self.slots + batch.map_or(self.batches_max, of)
    }

    /// Consumes an access: its row is used next by the following one.
    fn advance(&mut self, access: Access) {
        let known = self.known.get_mut(&access.row).expect("a row is known until its last access");
        known.next = access.next;
        match known.slot {
            NO_SLOT if access.next == NONE => _ = self.known.remove(&access.row),
            NO_SLOT => {}
            slot => self.place(slot, self.batch_of(access.next)),
        }
    }

    /// Removes a row from its slot, and from the known rows if it has no future use.
    fn withdraw(&mut self, row: u64) {
        let known = self.known.get_mut(&row).expect("a row in a slot is known");
        known.slot = NO_SLOT;
        if known.next == NONE {
            self.known.remove(&row);
        }
    }

    /// Returns the slot to replace for a row that is next used in `batch`, if it should be admitted.
    fn victim(&mut self, batch: Option<u64>) -> Option<u32> {
        let unknown = self.links.before(self.ring(None));
        if unknown < self.slots {
            return Some(unknown);
        }
        let batch = batch?;
        while self.furthest > batch {
            let slot = self.links.after(self.ring(Some(self.furthest)));
            if slot < self.slots {
                return Some(slot);
            }
            self.furthest -= 1;
        }
        None
    }
}

impl Policy for Foreseen {
    fn hit(&mut self, _slot: u32) {}

    fn admit(&mut self, row: u64) -> Option<u32> {
        let next = self.known.get(&row).map_or(NONE, |known| known.next);
        let batch = self.batch_of(next);
        let slot = if self.used < self.slots { self.used } else { self.victim(batch)? };
        if self.used < self.slots {
            self.used += 1;
        } else {
            self.withdraw(self.rows[slot as usize]);
        }
        self.rows[slot as usize] = row;
        self.known.entry(row).or_insert(Known { slot, next: NONE, last: NONE }).slot = slot;
        self.place(slot, batch);
        Some(slot)
    }

    fn begin(&mut self) {
        let Some(end) = self.ends.pop_front() else { return };
        self.first_batch += 1;
        while self.first_access < end {
            let access = self.accesses.pop_front().expect("a batch told ends among its accesses");
            self.first_access += 1;
            self.advance(access);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_in_slots_and_rows_told_are_known() {
        let mut foreseen = Foreseen::new(2, 3);
        for batch in 0..50 {
            assert!(foreseen.tell(&[batch, 7, batch, batch + 1]));
            assert!(foreseen.accesses.len() <= 3, "a row once per batch");
            foreseen.begin();
            (batch..batch + 9).for_each(|row| _ = foreseen.admit(100 + row));
            assert!(foreseen.known.len() <= 2);
        }
    }
}
