//! Layout of a page.
//!
//! A page consists of 4-byte words: the versions of its rows, then their values, then their optimiser state.
//! Optimisers update it in place, and it is written to a file unchanged.

use std::ops::Range;

use thinwire_update::Rows;

/// Largest size of a page in bytes, unless a single row is longer. Larger pages would make reads longer,
/// even if only one row is needed; smaller pages would need more bookkeeping.
pub const PAGE_BYTES: usize = 4096;

/// Layout of a table's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows per page.
    pub rows: usize,
    /// Values per row.
    pub width: usize,
    /// State numbers per value.
    pub slots: usize,
}

impl Shape {
    /// Returns the layout of a table with `rows` rows.
    pub fn new(rows: u64, width: usize, slots: usize) -> Shape {
        let row_bytes = 4 * (1 + width * (1 + slots));
        let most = (PAGE_BYTES / row_bytes).max(1);
        Shape { rows: usize::try_from(rows).map_or(most, |rows| rows.clamp(1, most)), width, slots }
    }

    /// Returns the number of words per page.
    pub fn words(&self) -> usize {
        self.rows * (1 + self.width * (1 + self.slots))
    }

    /// Returns a page as rows for an optimiser.
    pub fn split<'a>(&self, words: &'a mut [u32]) -> Rows<'a> {
        let (updates, rest) = words.split_at_mut(self.rows);
        let (values, state) = rest.split_at_mut(self.rows * self.width);
        Rows {
            width: self.width,
            values: bytemuck::must_cast_slice_mut(values),
            state: bytemuck::must_cast_slice_mut(state),
            updates,
        }
    }

    /// Returns the bytes of a row's values in its page.
    pub fn values<'a>(&self, words: &'a [u32], row: usize) -> &'a [u8] {
        let start = self.rows + row * self.width;
        bytemuck::must_cast_slice(&words[start..start + self.width])
    }

    /// Returns the ranges of the versions, values and state of the first `rows` rows, in words.
    pub fn regions(&self, rows: usize) -> [Range<usize>; 3] {
        let region = |start, length| start..start + length;
        [
            region(0, rows),
            region(self.rows, rows * self.width),
            region(self.rows * (1 + self.width), rows * self.width * self.slots),
        ]
    }
}
