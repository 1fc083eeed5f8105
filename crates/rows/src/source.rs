//! Sources of rows.

use crate::error::Error;

/// Rows of equal width that are read by their ids.
pub trait Source: Sync {
    /// Returns the bytes of a row, at least 1.
    fn width(&self) -> usize;

    /// Reads rows, in their order, into `out`, which has [`width`](Source::width) bytes for each of them.
    /// Ascending rows without repetitions are read fastest.
    ///
    /// # Errors
    /// If a row does not exist, `out` has another length, or reading fails; `out` may then be half written.
    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error>;
}
