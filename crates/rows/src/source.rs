//! Sources of rows.

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
}
