//! Layout of a page of rows.
//!
//! A page has, in words of four bytes, the numbers of updates of its rows, then their values, then their
//! state: an optimiser updates it in place, and a file takes it as it is.

use std::ops::Range;

use thinwire_update::Rows;

/// Bytes of a page, at most; one row may be longer. A page that is brought back costs a read of so many
/// bytes for what may be one row, and a page in memory costs some bytes beside its rows.
pub const PAGE_BYTES: usize = 4096;

/// Layout of the pages of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a page.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// Numbers of state per value.
    pub slots: usize,
}

impl Shape {
    /// The layout of a table with `rows` rows.
    pub fn new(rows: u64, width: usize, slots: usize) -> Shape {
        let row_bytes = 4 * (1 + width * (1 + slots));
        let most = (PAGE_BYTES / row_bytes).max(1);
        Shape { rows: usize::try_from(rows).map_or(most, |rows| rows.clamp(1, most)), width, slots }
    }

    /// Returns the number of words of a page.
    pub fn words(&self) -> usize {
        self.rows * (1 + self.width * (1 + self.slots))
    }

    /// Returns a page's rows for an optimiser.
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

    /// Returns the bytes of the values of a row in its page.
    pub fn values<'a>(&self, words: &'a [u32], row: usize) -> &'a [u8] {
        let start = self.rows + row * self.width;
        bytemuck::must_cast_slice(&words[start..start + self.width])
    }

    /// Returns the words of the first `rows` rows: their numbers of updates, values and state.
    pub fn regions(&self, rows: usize) -> [Range<usize>; 3] {
        let region = |start, length| start..start + length;
        [
            region(0, rows),
            region(self.rows, rows * self.width),
            region(self.rows * (1 + self.width), rows * self.width * self.slots),
        ]
    }
}
