//! Cache of rows: a fixed number of slots, whose rows a policy chooses.
//!
//! A batch is looked up in two parts, so that the caller fetches the missing rows as it likes, while other
//! batches go on: `begin` copies the rows that the cache has, and `finish` those that were fetched. The
//! batch is then in the order of its ids. Laws:
//!
//! 1. Answers are those of the source, whatever policy and size, if rows never change or each change is written.
//! 2. No row is given whose time is before the oldest that the reader takes.
//! 3. The cache never takes more memory than its limit. A batch larger than the cache has misses, and no other harm.
//!
//! Times are steps, or any number that grows with the versions of rows. An entry has the time at which its value
//! was that of the source; a reader at step `t` that takes values at most `s` steps old passes
//! `t.saturating_sub(s)` as the oldest time, and 0 for rows that never change.

use crate::error::{Error, check_length};
use crate::hits::Hits;
use crate::index::Index;
use crate::lookup::Lookup;
use crate::policy::Policy;
use crate::seen::Seen;
use crate::slots::{HEAD_BYTES, Head, NO_ROW, Slots};
use crate::source::Source;

/// Ids whose slots are found before their values are copied, so that accesses to memory overlap.
const BLOCK: usize = 64;

/// Slot of a row that the cache does not give.
const MISSING: u32 = u32::MAX;

/// Most slots of a cache.
const SLOTS_MAX: u64 = 1 << 31;

/// Bytes that a policy may take per slot beside the cache's own.
const POLICY_BYTES: usize = 20;

/// Bytes per slot beside the row itself, for the cache and the policy. The batches that a policy is told come on top.
pub const SLOT_BYTES: usize = HEAD_BYTES + Index::SLOT_BYTES + Seen::SLOT_BYTES + POLICY_BYTES;

/// Cache of rows of equal width.
#[derive(Clone, Debug)]
pub struct Cache<P> {
    width: usize,
    slots: Slots,
    index: Index,
    policy: P,
    seen: Seen,
    hits: Hits,
}

impl<P: Policy> Cache<P> {
    /// A cache of rows of `width` bytes that takes at most `bytes_max` bytes, its bookkeeping
    /// ([`SLOT_BYTES`]) included. `policy` makes the policy for the number of slots.
    ///
    /// # Panics
    /// If the width is 0.
    pub fn new(width: usize, bytes_max: u64, policy: impl FnOnce(u32) -> P) -> Cache<P> {
        assert!(width > 0, "a row has bytes");
        let slots = (bytes_max / (width as u64 + SLOT_BYTES as u64)).min(SLOTS_MAX) as u32;
        let policy = policy(slots);
        Cache {
            width,
            slots: Slots::new(slots, width),
            index: Index::new(if policy.is_direct() { 0 } else { slots }),
            policy,
            seen: Seen::new(slots),
            hits: Hits::default(),
        }
    }

    /// Begins the lookup of a batch: copies the rows that the cache has to their ids' places in `out`, and leaves the
    /// others in [`Lookup::missing`]. Rows older than `oldest` are missing.
    ///
    /// Several lookups may be under way. A row that is missing in two of them is missing twice.
    ///
    /// # Errors
    /// If `out` has not a row for each id.
    ///
    /// # Panics
    /// If there are more than 2^31 ids.
    pub fn begin(
        &mut self,
        ids: &[u64],
        oldest: u64,
        lookup: &mut Lookup,
        out: &mut [u8],
    ) -> Result<(), Error> {
        check_length("output", out.len(), ids.len(), self.width)?;
        lookup.clear();
        self.policy.begin();
        let (mut slots, mut heads) = ([MISSING; BLOCK], [Head::default(); BLOCK]);
        let blocks = ids.chunks(BLOCK).zip(out.chunks_mut(BLOCK * self.width));
        for (start, (ids, out)) in (0..).step_by(BLOCK).zip(blocks) {
            let slots = &mut slots[..ids.len()];
            self.find_likely(ids, slots);
            self.slots.read_heads(slots, &mut heads);
            self.check(ids, oldest, &heads, slots);
            self.copy(slots, out);
            let missing = (start..).zip(ids).zip(slots).filter(|(_, slot)| **slot == MISSING);
            missing.for_each(|((position, id), _)| lookup.miss(*id, position));
        }
        self.seen.clear();
        lookup.begun(ids.len());
        self.count(ids.len(), lookup.missing().len());
        Ok(())
    }

    /// Finishes the lookup of a batch with the values of its missing rows, which the source had at `time`: copies them
    /// to their ids' places in `out`, and keeps those that the policy admits.
    ///
    /// # Errors
    /// If a length does not fit; the lookup may then be finished again.
    pub fn finish(
        &mut self,
        lookup: &mut Lookup,
        values: &[u8],
        time: u64,
        out: &mut [u8],
    ) -> Result<(), Error> {
        lookup.scatter(values, self.width, out)?;
        self.keep(lookup.missing(), values, time);
        lookup.clear();
        Ok(())
    }

    /// Looks a batch up in rows that never change, and reads the missing ones from `source`.
    ///
    /// # Errors
    /// If `source` has rows of another width or fails, or `out` has not a row for each id.
    pub fn read(
        &mut self,
        source: &dyn Source,
        ids: &[u64],
        lookup: &mut Lookup,
        out: &mut [u8],
    ) -> Result<(), Error> {
        self.check_width(source)?;
        self.begin(ids, 0, lookup, out)?;
        let mut values = std::mem::take(&mut lookup.values);
        values.resize(lookup.missing().len() * self.width, 0);
        let answer = source.read(lookup.missing(), &mut values);
        let finished = answer.and_then(|()| self.finish(lookup, &values, 0, out));
        lookup.values = values;
        finished
    }

    /// Offers rows to the policy before anybody looks them up, such as a prefix that is loaded at the start.
    ///
    /// # Errors
    /// If the length does not fit.
    pub fn preload(&mut self, rows: &[u64], values: &[u8], time: u64) -> Result<(), Error> {
        check_length("values", values.len(), rows.len(), self.width)?;
        self.keep(rows, values, time);
        Ok(())
    }

    /// Writes new values of rows, those of `time`, over the ones that the cache has, unless these are newer.
    /// Rows that it does not have are left to the next lookup.
    ///
    /// # Errors
    /// If the length does not fit.
    pub fn write(&mut self, rows: &[u64], values: &[u8], time: u64) -> Result<(), Error> {
        check_length("values", values.len(), rows.len(), self.width)?;
        for (row, value) in rows.iter().zip(values.chunks_exact(self.width)) {
            if let Some(slot) = self.slot(*row) {
                self.slots.refresh(slot, value, time.saturating_add(1));
            }
        }
        Ok(())
    }

    /// Makes rows missing until they are fetched again, such as those that the caller has changed elsewhere.
    pub fn forget(&mut self, rows: &[u64]) {
        for row in rows {
            if let Some(slot) = self.slot(*row) {
                self.slots.forget(slot);
            }
        }
    }

    /// Returns the counts since the cache was made or they were taken.
    pub fn hits(&self) -> Hits {
        self.hits
    }

    /// Returns the counts and begins anew.
    pub fn take_hits(&mut self) -> Hits {
        std::mem::take(&mut self.hits)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots.count()
    }

    /// Returns the memory that the cache takes, in bytes, without that of its policy.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.index.bytes() + self.seen.bytes()
    }

    /// Returns the policy, such as to tell it the batches to come.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Writes for each id the slot that its row has if it has one, but for one row in 2^32.
    fn find_likely(&self, ids: &[u64], slots: &mut [u32]) {
        if !self.policy.is_direct() {
            return self.index.find_likely(ids, MISSING, slots);
        }
        let count = self.slots.count() as u64;
        let slot = |id: u64| if id < count { id as u32 } else { MISSING };
        slots.iter_mut().zip(ids).for_each(|(place, id)| *place = slot(*id));
    }

    /// Marks those as missing whose rows may not be given, and counts the others.
    fn check(&mut self, ids: &[u64], oldest: u64, heads: &[Head], slots: &mut [u32]) {
        for ((id, slot), head) in ids.iter().zip(slots).zip(heads) {
            *slot = match self.confirm(*id, *slot, *head) {
                Some((slot, head)) => self.used(slot, head.stamp > oldest),
                None => MISSING,
            };
        }
    }

    /// Returns the slot of a row with its state, from the slot that it is likely to have.
    fn confirm(&self, row: u64, likely: u32, head: Head) -> Option<(u32, Head)> {
        if likely == MISSING || head.row == row {
            return (likely != MISSING).then_some((likely, head));
        }
        let slot = self.slot(row)?;
        Some((slot, self.slots.head(slot)))
    }

    /// Counts the use of a slot, and returns it if its value may be given.
    fn used(&mut self, slot: u32, fresh: bool) -> u32 {
        if self.seen.insert(slot) {
            self.hits.hits += u64::from(fresh);
            self.hits.stale += u64::from(!fresh);
            self.policy.hit(slot);
        }
        if fresh { slot } else { MISSING }
    }

    fn copy(&self, slots: &[u32], out: &mut [u8]) {
        for (slot, out) in slots.iter().zip(out.chunks_exact_mut(self.width)) {
            if *slot != MISSING {
                out.copy_from_slice(self.slots.value(*slot));
            }
        }
    }

    fn count(&mut self, ids: usize, missing: usize) {
        self.hits.lookups += 1;
        self.hits.ids += ids as u64;
        self.hits.misses += missing as u64;
        self.hits.bytes_missed += (missing * self.width) as u64;
    }

    fn keep(&mut self, rows: &[u64], values: &[u8], time: u64) {
        for (row, value) in rows.iter().zip(values.chunks_exact(self.width)) {
            // Another lookup may have fetched it meanwhile, or it was too old.
            let slot = self.slot(*row).or_else(|| self.admit(*row));
            if let Some(slot) = slot {
                self.slots.refresh(slot, value, time.saturating_add(1));
            }
        }
    }

    /// Gives a row the slot that the policy says.
    fn admit(&mut self, row: u64) -> Option<u32> {
        if row == NO_ROW {
            return None;
        }
        let slot = self.policy.admit(row)?;
        let old = self.slots.assign(slot, row);
        self.hits.evictions += u64::from(old != NO_ROW);
        if !self.policy.is_direct() {
            if old != NO_ROW {
                self.index.remove(old, slot);
            }
            self.index.insert(row, slot);
        }
        Some(slot)
    }

    /// Returns the slot of a row, whatever the age of the value.
    fn slot(&self, row: u64) -> Option<u32> {
        if self.policy.is_direct() {
            let has = row < self.slots.count() as u64 && self.slots.head(row as u32).row == row;
            return has.then_some(row as u32);
        }
        self.index.find(row, |slot| self.slots.head(slot).row)
    }

    fn check_width(&self, source: &dyn Source) -> Result<(), Error> {
        let (found, expected) = (source.width(), self.width);
        if found == expected {
            return Ok(());
        }
        Err(Error::length(format!("source with rows of {found} bytes, expected {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::unmix;
    use crate::policy::{Lru, Sieve};

    /// Looks rows up and answers with their last bytes; returns the missing ones.
    fn look_up<P: Policy>(cache: &mut Cache<P>, rows: &[u64]) -> Vec<u64> {
        let (mut lookup, mut out) = (Lookup::new(), vec![0; rows.len()]);
        let values = |rows: &[u64]| rows.iter().map(|row| *row as u8).collect::<Vec<u8>>();
        cache.begin(rows, 0, &mut lookup, &mut out).unwrap();
        let missing = lookup.missing().to_vec();
        cache.finish(&mut lookup, &values(&missing), 0, &mut out).unwrap();
        assert_eq!(out, values(rows));
        missing
    }

    #[test]
    fn rows_of_one_tag_are_told_apart() {
        // Products with equal upper halves.
        let rows = [1, 2, 3].map(|low| unmix(77 << 32 | low));
        let mut cache = Cache::new(1, 2 * (1 + SLOT_BYTES as u64), Lru::new);
        assert_eq!(look_up(&mut cache, &rows[..2]).len(), 2);
        assert!(look_up(&mut cache, &rows[..2]).is_empty());
        assert_eq!(look_up(&mut cache, &rows[1..]), rows[2..]);
        assert!(look_up(&mut cache, &rows[1..]).is_empty());
    }

    #[test]
    fn batches_longer_than_a_block_are_as_short_ones() {
        let mut cache = Cache::new(1, 50 * (1 + SLOT_BYTES as u64), Sieve::new);
        for step in 0..20 {
            let rows: Vec<u64> =
                (0..5 * BLOCK as u64 + 7).map(|at| (at * at + step) % 90).collect();
            look_up(&mut cache, &rows);
        }
        assert!(cache.hits().hits > 0 && cache.hits().evictions > 0);
    }
}
