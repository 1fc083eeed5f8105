//! Sources of rows.

use std::sync::Arc;

use crate::error::Error;

/// Rows of equal width, read by id.
pub trait Source: Sync {
    /// Returns the size of a row in bytes, at least 1.
    fn width(&self) -> usize;

    /// Reads rows in order into `out`, which must have [`width`](Source::width) bytes per row. Ascending
    /// unique rows are read fastest.
    ///
    /// # Errors
    /// If a row does not exist, `out` has another length, or reading fails. `out` may then be partly written.
    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error>;

    /// Returns a row without copying it, if it is in this process's memory.
    fn in_memory(&self, _row: u64) -> Option<&[u8]> {
        None
    }

    /// Returns a row without copying it, if it is in this process's memory and the source has other rows
    /// that take longer to reach. A cache in front of the source should then hold only those other rows.
    fn own(&self, _row: u64) -> Option<&[u8]> {
        None
    }
}

impl<S: Source + Send + ?Sized> Source for Arc<S> {
    fn width(&self) -> usize {
        (**self).width()
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        (**self).read(rows, out)
    }

    fn in_memory(&self, row: u64) -> Option<&[u8]> {
        (**self).in_memory(row)
    }

    fn own(&self, row: u64) -> Option<&[u8]> {
        (**self).own(row)
    }
}
