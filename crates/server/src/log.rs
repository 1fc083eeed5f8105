//! Log of a shard: its writes in order, and how many of them are committed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clocks::Clocks;
use crate::write::{Entry, Write};

/// Entries after number `base`. The first entry of a shard has number 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    base: u64,
    committed: u64,
    entries: VecDeque<Entry>,
}

impl Log {
    /// Returns the number of the last entry.
    pub fn last(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Returns the number of the last entry that is committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Appends an entry and returns its number.
    pub fn append(&mut self, entry: Entry) -> u64 {
        self.entries.push_back(entry);
        self.last()
    }

    /// Stores uncommitted entry `number`. If the log has an entry of another view in its place, that entry
    /// and all later ones are dropped: they were never acknowledged.
    pub fn put(&mut self, number: u64, entry: Entry) {
        debug_assert!((self.committed + 1..=self.last() + 1).contains(&number));
        let at = (number - self.base - 1) as usize;
        if self.entries.get(at).is_none_or(|known| known.view != entry.view) {
            self.entries.truncate(at);
            self.entries.push_back(entry);
        }
    }

    /// Returns at most `max` entries after `number`, or `None` if the log no longer has them.
    pub fn after(&self, number: u64, max: usize) -> Option<Vec<Entry>> {
        let skipped = number.checked_sub(self.base)? as usize;
        Some(self.entries.iter().skip(skipped).take(max).cloned().collect())
    }

    /// Commits the next entry and returns its write.
    pub fn commit(&mut self) -> Arc<Write> {
        let at = (self.committed - self.base) as usize;
        self.committed += 1;
        Arc::clone(&self.entries[at].write)
    }

    /// Drops committed entries except the last `kept`.
    pub fn trim(&mut self, kept: u64) {
        while self.base + kept < self.committed {
            self.entries.pop_front();
            self.base += 1;
        }
    }

    /// Continues from a state that contains the first `number` entries. Later entries are kept: they may be
    /// acknowledged, and the primary compares them.
    pub fn advance(&mut self, number: u64) {
        let known = number.saturating_sub(self.base).min(self.entries.len() as u64);
        self.entries.drain(..known as usize);
        (self.base, self.committed) = (number, number);
    }
}

/// Replicated state of one server without its tables: the log, the clocks, and the number of entries
/// known to equal the primary's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Copy {
    pub log: Log,
    /// Clocks of all committed pushes, which are the pushes in the tables.
    pub clocks: Clocks,
    /// Last entry up to which the log is known to equal the primary's in this view. Committed entries are
    /// equal on all replicas.
    pub matched: u64,
}

impl Copy {
    /// Resets `matched` to the committed entries, since a new primary may have other entries after them.
    pub fn doubt(&mut self) {
        self.matched = self.log.committed();
    }

    /// Commits the next entry and returns its write.
    pub fn commit(&mut self) -> Arc<Write> {
        let write = self.log.commit();
        self.clocks.apply(&write);
        write
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Workers;

    fn entry(view: u64) -> Entry {
        Entry { view, write: Arc::new(Write::Workers(Workers::default())) }
    }

    fn views(log: &Log) -> Vec<u64> {
        log.entries.iter().map(|entry| entry.view).collect()
    }

    #[test]
    fn what_differs_goes_with_all_that_follows() {
        let mut log = Log::default();
        (1..=4).for_each(|number| log.put(number, entry(1)));
        log.put(2, entry(1));
        assert_eq!(views(&log), [1, 1, 1, 1]);
        log.put(3, entry(2));
        assert_eq!(views(&log), [1, 1, 2]);
    }

    #[test]
    fn numbers_stay_when_old_entries_go() {
        let mut log = Log::default();
        (1..=6).for_each(|view| assert_eq!(log.append(entry(view)), view));
        (0..5).for_each(|_| drop(log.commit()));
        log.trim(2);
        assert_eq!((log.last(), log.committed(), views(&log)), (6, 5, vec![4, 5, 6]));
        assert_eq!(log.after(2, 9), None);
        assert_eq!(log.after(4, 1), Some(vec![entry(5)]));
        assert_eq!(log.after(6, 1), Some(Vec::new()));
    }

    #[test]
    fn a_snapshot_leaves_later_entries() {
        let mut log = Log::default();
        (1..=6).for_each(|view| assert_eq!(log.append(entry(view)), view));
        log.advance(4);
        assert_eq!((log.last(), log.committed(), views(&log)), (6, 4, vec![5, 6]));
        log.advance(9);
        assert_eq!((log.last(), log.committed(), views(&log)), (9, 9, vec![]));
    }
}
