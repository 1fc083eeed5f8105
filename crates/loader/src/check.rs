//! Checks of reads from sources of rows, before any row is read.

use thinwire_rows::Error;

/// Refuses a buffer that has not `width` bytes for each of the rows.
///
/// # Errors
/// If it has another length.
pub fn check_room(rows: &[u64], out: &[u8], width: usize) -> Result<(), Error> {
    if out.len() == rows.len() * width {
        return Ok(());
    }
    let context = format!("{} bytes for {} rows of {width}", out.len(), rows.len());
    Err(Error::of_source(context, "expected room for all rows"))
}

/// Refuses rows that a source of `count` rows does not have.
///
/// # Errors
/// The first such row.
pub fn check_rows(rows: &[u64], count: u64) -> Result<(), Error> {
    rows.iter().find(|row| **row >= count).map_or(Ok(()), |row| {
        let context = format!("row {row}, expected rows of 0..{count}");
        Err(Error::of_source(context, "no such row"))
    })
}
