//! Hash table from rows to slots, of fixed size with open addressing.
//!
//! A cell has the slot and 32 bits of the row's hash, from which the cell's home position follows. The row
//! itself is stored in the slot, which a lookup reads anyway.

use crate::mix::mix;

/// Cells per slot: at least half of the cells are empty.
const CELLS_PER_SLOT: usize = 2;

/// Table of the rows' slots. It always has an empty cell, at which a search ends.
#[derive(Clone, Debug)]
pub struct Index {
    /// Tag in the upper half, slot plus 1 in the lower; 0 if empty.
    cells: Vec<u64>,
}

impl Index {
    /// Memory in bytes per slot.
    pub const SLOT_BYTES: usize = CELLS_PER_SLOT * size_of::<u64>();

    /// Creates a table for this many slots.
    pub fn new(slots: u32) -> Index {
        Index { cells: vec![0; (CELLS_PER_SLOT * slots as usize).max(1)] }
    }

    /// Returns the memory of the table, in bytes.
    pub fn bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u64>()
    }

    /// Writes the likely slot of each row, or `missing`. A slot belongs to another row with a probability of
    /// about 2^-32.
    pub fn find_likely(&self, rows: &[u64], missing: u32, slots: &mut [u32]) {
        // Without branches, so that memory accesses overlap; after that the cells are in the processor's
        // cache.
        let first = |row: &u64| self.cells[self.home(tag(*row))] as u32;
        slots.iter_mut().zip(rows).for_each(|(slot, row)| *slot = first(row));
        for (slot, row) in slots.iter_mut().zip(rows).filter(|(slot, _)| **slot != 0) {
            *slot = self.find(*row, |_| *row).map_or(0, |slot| slot + 1);
        }
        let without = |slot: u32| if slot == 0 { missing } else { slot - 1 };
        slots.iter_mut().for_each(|slot| *slot = without(*slot));
    }

    /// Returns the slot of a row. `row_of` returns the row in a slot.
    pub fn find(&self, row: u64, row_of: impl Fn(u32) -> u64) -> Option<u32> {
        let tag = tag(row);
        let mut at = self.home(tag);
        loop {
            let cell = self.cells[at];
            if cell == 0 {
                return None;
            }
            let slot = cell as u32 - 1;
            if cell >> 32 == tag && row_of(slot) == row {
                return Some(slot);
            }
            at = self.after(at);
        }
    }

    /// Inserts a row that is not in the table.
    pub fn insert(&mut self, row: u64, slot: u32) {
        let tag = tag(row);
        let mut at = self.home(tag);
        while self.cells[at] != 0 {
            at = self.after(at);
        }
        self.cells[at] = tag << 32 | u64::from(slot + 1);
    }

    /// Removes a row that is in the table with this slot.
    pub fn remove(&mut self, row: u64, slot: u32) {
        let tag = tag(row);
        let mut hole = self.home(tag);
        while self.cells[hole] != tag << 32 | u64::from(slot + 1) {
            hole = self.after(hole);
        }
        // Later cells move into the hole unless their home position is after it.
        let mut at = self.after(hole);
        while self.cells[at] != 0 {
            let home = self.home(self.cells[at] >> 32);
            if self.distance(home, at) >= self.distance(hole, at) {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.cells[hole] = 0;
    }

    fn home(&self, tag: u64) -> usize {
        ((tag * self.cells.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    /// Returns the number of steps from one cell to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells.len() - from }
    }
}

fn tag(row: u64) -> u64 {
    mix(row) >> 32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_is_a_map(moves in prop::collection::vec((0_u32..7, 0_u64..12), 0..300)) {
            let mut index = Index::new(7);
            let mut rows: BTreeMap<u32, u64> = BTreeMap::new();
            for (slot, row) in moves {
                // Far apart, and equal in their lower bits.
                let row = row << 40;
                if rows.values().any(|other| *other == row) {
                    continue;
                }
                if let Some(old) = rows.insert(slot, row) {
                    index.remove(old, slot);
                }
                index.insert(row, slot);
                for row in 0..12 {
                    let expected = rows.iter().find(|(_, other)| **other == row << 40);
                    let found = index.find(row << 40, |slot| rows[&slot]);
                    prop_assert_eq!(found, expected.map(|(slot, _)| *slot));
                }
            }
        }
    }
}
