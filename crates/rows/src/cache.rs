//! Cache of rows in a fixed number of slots; a policy chooses the rows.
//!
//! A lookup has two parts, between which the caller fetches the missing rows in any way and may look up other
//! batches: `begin` copies the cached rows to the output, and `finish` the fetched ones. Laws:
//!
//! 1. If rows never change or every change is written, answers equal the source's.
//! 2. No value older than the reader's oldest accepted time is returned.
//! 3. The cache never exceeds its memory limit. A batch larger than the cache only causes misses.
//!
//! Times are steps, or any number that grows with the versions of rows. An entry stores a time at which
//! the source had its value. A reader at step `t` that accepts values at most `s` steps old passes
//! `t.saturating_sub(s)` as the oldest time, or 0 for rows that never change.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::error::{Error, check_length};
use crate::index::Index;
use crate::lookup::Lookup;
use crate::policy::Policy;
use crate::slots::{HEAD_BYTES, Head, NO_ROW, Seen, Slots};
use crate::source::Source;

/// Number of ids whose slots are found before their values are copied, so that memory accesses overlap.
const BLOCK: usize = 64;

/// Slot of a row that is a miss.
const MISSING: u32 = u32::MAX;

/// Largest number of slots of a cache.
const SLOTS_MAX: u64 = 1 << 31;

/// Largest bookkeeping of a policy, in bytes per slot.
const POLICY_BYTES: usize = 20;

/// Bookkeeping of cache and policy in bytes per slot, without batches that a policy is told in advance.
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
    /// Creates a cache of rows of `width` bytes that takes at most `bytes_max` bytes, including bookkeeping
    /// ([`SLOT_BYTES`] per row). `policy` creates the policy for a number of slots.
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
            index: Index::new(slots),
            policy,
            seen: Seen::new(slots),
            hits: Hits::default(),
        }
    }

    /// Begins the lookup of a batch: copies cached rows to the places of their ids in `out`, and lists the
    /// others in [`Lookup::missing`]. Rows older than `oldest` are missing.
    ///
    /// Several lookups may be under way. A row that is missing in two of them is requested twice.
    ///
    /// # Errors
    /// If `out` does not have `width` bytes for each id.
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
            self.index.find_likely(ids, MISSING, slots);
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

    /// Finishes a lookup with the values of its missing rows, as the source had them at `time`: copies
    /// them to the places of their ids in `out`, and caches those that the policy admits.
    ///
    /// # Errors
    /// If a length does not fit; the lookup can be finished again.
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

    /// Looks up a batch of rows that never change, reading the missing ones from `source`.
    ///
    /// # Errors
    /// If `source` has rows of another width or fails, or `out` does not have `width` bytes for each id.
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

    /// Overwrites cached values of rows with `values`, which the rows had at `time`. Cached values that
    /// are newer stay, and rows that are not cached are ignored.
    ///
    /// # Errors
    /// If `values` does not have `width` bytes for each row.
    pub fn write(&mut self, rows: &[u64], values: &[u8], time: u64) -> Result<(), Error> {
        check_length("values", values.len(), rows.len(), self.width)?;
        for (row, value) in rows.iter().zip(values.chunks_exact(self.width)) {
            if let Some(slot) = self.slot(*row) {
                self.slots.refresh(slot, value, time.saturating_add(1));
            }
        }
        Ok(())
    }

    /// Marks rows as missing until they are fetched again, for example after the caller changed them
    /// elsewhere.
    pub fn forget(&mut self, rows: &[u64]) {
        for row in rows {
            if let Some(slot) = self.slot(*row) {
                self.slots.forget(slot);
            }
        }
    }

    /// Returns the counters since the cache was created.
    pub fn hits(&self) -> Hits {
        self.hits
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots.count()
    }

    /// Returns the memory of the cache in bytes, without its policy.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.index.bytes() + self.seen.bytes()
    }

    /// Returns the policy, for example to tell it future batches.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Replaces slots that must not be used by [`MISSING`], and counts hits and misses.
    fn check(&mut self, ids: &[u64], oldest: u64, heads: &[Head], slots: &mut [u32]) {
        for ((id, slot), head) in ids.iter().zip(slots).zip(heads) {
            *slot = match self.confirm(*id, *slot, *head) {
                Some((slot, head)) => self.used(slot, head, oldest),
                None => MISSING,
            };
        }
    }

    /// Returns the slot of a row and its state, given the likely slot and its state.
    fn confirm(&self, row: u64, likely: u32, head: Head) -> Option<(u32, Head)> {
        if likely == MISSING || head.row == row {
            return (likely != MISSING).then_some((likely, head));
        }
        let slot = self.slot(row)?;
        Some((slot, self.slots.head(slot)))
    }

    /// Counts a use of a slot. Returns the slot if its value is fresh, else [`MISSING`].
    fn used(&mut self, slot: u32, head: Head, oldest: u64) -> u32 {
        let fresh = head.stamp > oldest;
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
            // Another lookup may have fetched the row meanwhile, or the cached value was too old.
            let slot = self.slot(*row).or_else(|| self.admit(*row));
            if let Some(slot) = slot {
                self.slots.refresh(slot, value, time.saturating_add(1));
            }
        }
    }

    /// Assigns a slot to a row if the policy admits it.
    fn admit(&mut self, row: u64) -> Option<u32> {
        if row == NO_ROW {
            return None;
        }
        let slot = self.policy.admit(row)?;
        let old = self.slots.assign(slot, row);
        self.hits.evictions += u64::from(old != NO_ROW);
        if old != NO_ROW {
            self.index.remove(old, slot);
        }
        self.index.insert(row, slot);
        Some(slot)
    }

    /// Returns the slot of a row, however old its value.
    fn slot(&self, row: u64) -> Option<u32> {
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

/// Counters of a cache's lookups. A row that occurs several times in a batch counts once, except in `ids`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// Looked up batches.
    pub lookups: u64,
    /// Ids in the batches, including repetitions.
    pub ids: u64,
    /// Rows found in the cache.
    pub hits: u64,
    /// Rows not found in the cache, or found too old.
    pub misses: u64,
    /// Misses of rows that were cached, but too old.
    pub stale: u64,
    /// Rows replaced by others.
    pub evictions: u64,
    /// Bytes of missed rows.
    pub bytes_missed: u64,
}

impl Hits {
    /// Returns the fraction of rows that were hits; 0 without lookups.
    pub fn rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

impl AddAssign for Hits {
    fn add_assign(&mut self, other: Hits) {
        self.lookups += other.lookups;
        self.ids += other.ids;
        self.hits += other.hits;
        self.misses += other.misses;
        self.stale += other.stale;
        self.evictions += other.evictions;
        self.bytes_missed += other.bytes_missed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::unmix;
    use crate::policy::{Lru, Sieve};

    /// Looks up rows, fetching misses as the rows' last bytes. Returns the missing rows.
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
        // These products have equal upper halves.
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

    #[test]
    fn counts_add_up_and_come_back_from_json() {
        let mut sum = Hits { lookups: 1, ids: 9, hits: 6, misses: 2, ..Hits::default() };
        assert_eq!((sum.rate(), Hits::default().rate()), (0.75, 0.0));
        sum += Hits { lookups: 1, stale: 3, evictions: 4, bytes_missed: 5, ..sum };
        let text = serde_json::to_string(&sum).unwrap();
        let expected = r#"{"lookups":2,"ids":18,"hits":12,"misses":4,"stale":3,"evictions":4,"bytes_missed":5}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Hits>(&text).unwrap(), sum);
    }
}
