//! Foreseen: the rows used soonest, where the batches to come are known.
//!
//! Sampling is a pure function of seed, pass and batch, so a loader knows every access before it
//! happens. The caller tells the batches ahead, as many as it likes; each lookup uses up one. Law: where all
//! batches are told, hits are those of [`belady`](crate::belady).
//!
//! A row whose next use is not known, since it lies beyond the batches told, gives its slot first, the
//! one used longest ago before the others. Lookups that differ from the batches told cost hits and nothing else.

use std::collections::VecDeque;

use super::Policy;
use crate::links::Links;
use crate::mix::RowMap;

/// Number of an access that does not exist.
const NONE: u64 = u64::MAX;

/// Slot of a row that has none.
const NO_SLOT: u32 = u32::MAX;

/// Policy that replaces the row whose next use is furthest away, and keeps no row used later than those.
#[derive(Clone, Debug)]
pub struct Foreseen {
    slots: u32,
    used: u32,
    batches_max: u32,
    /// Rings of slots whose rows are used next in one batch, behind a number per batch that may be told;
    /// the last number is for slots whose next use is not known.
    links: Links,
    rows: Vec<u64>,
    known: RowMap<Known>,
    accesses: VecDeque<Access>,
    /// Number of the first of `accesses`.
    first_access: u64,
    /// Ends of the batches told, as numbers of accesses.
    ends: VecDeque<u64>,
    /// Number of the first of `ends`.
    first_batch: u64,
    /// Batch beyond which no slot is used, as far as is known.
    furthest: u64,
}

/// Row that is in a slot or will be used.
#[derive(Clone, Copy, Debug)]
struct Known {
    slot: u32,
    /// Numbers of the next access and of the last one.
    next: u64,
    last: u64,
}

/// Use of a row by a batch.
#[derive(Clone, Copy, Debug)]
struct Access {
    row: u64,
    batch: u64,
    /// Number of the row's access after this one.
    next: u64,
}

impl Foreseen {
    /// The policy of a cache with this many slots, to which at most `batches_max` batches are told ahead.
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

    /// Tells the batch after those told before. Returns false, and takes nothing, while the policy knows
    /// as many as it may: a lookup makes room for one.
    pub fn tell(&mut self, ids: &[u64]) -> bool {
        if self.ends.len() == self.batches_max as usize {
            return false;
        }
        let batch = self.first_batch + self.ends.len() as u64;
        ids.iter().for_each(|row| self.tell_access(*row, batch));
        self.ends.push_back(self.next_access());
        true
    }

    /// Returns the number of batches that are told and not yet used up.
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

    /// Batch of an access, if it exists.
    fn batch_of(&self, access: u64) -> Option<u64> {
        let at = access.wrapping_sub(self.first_access);
        (access != NONE).then(|| self.accesses[at as usize].batch)
    }

    /// Puts a slot among those that are used next in `batch`.
    fn place(&mut self, slot: u32, batch: Option<u64>) {
        self.furthest = self.furthest.max(batch.unwrap_or(0));
        let ring = self.ring(batch);
        self.links.put_after(ring, slot);
    }

    fn ring(&self, batch: Option<u64>) -> u32 {
        let of = |batch| (batch % u64::from(self.batches_max)) as u32;
        self.slots + batch.map_or(self.batches_max, of)
    }

    /// Uses up an access: the row is next used in the one after it.
    fn advance(&mut self, access: Access) {
        let known = self.known.get_mut(&access.row).expect("a row is known until its last access");
        known.next = access.next;
        match known.slot {
            NO_SLOT if access.next == NONE => _ = self.known.remove(&access.row),
            NO_SLOT => {}
            slot => self.place(slot, self.batch_of(access.next)),
        }
    }

    /// Takes the slot from a row; one that is not used again is no longer known.
    fn withdraw(&mut self, row: u64) {
        let known = self.known.get_mut(&row).expect("a row in a slot is known");
        known.slot = NO_SLOT;
        if known.next == NONE {
            self.known.remove(&row);
        }
    }

    /// Returns the slot to replace for a row that is used next in `batch`.
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
