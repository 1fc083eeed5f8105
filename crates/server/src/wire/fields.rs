//! Fields of messages: numbers, counts and values.

use thinwire_link::{Error, Kind};
use thinwire_member::{Fields, Id};

/// Largest number of a push, entry or clock; sums of two such numbers fit in 64 bits.
pub const NUMBER_MAX: u64 = 1 << 62;

/// Returns the error for bytes that are no message of the expected kind.
pub fn strange(expected: &str, bytes: &[u8]) -> Error {
    let (length, kind) = (bytes.len(), bytes.first().copied().unwrap_or_default());
    let context = format!("sent {length} bytes of kind {kind}, expected a {expected}");
    Error::new(Kind::Corrupt, context)
}

/// Returns the result of `read` if it consumes all bytes.
pub fn whole<T>(bytes: &[u8], read: impl FnOnce(&mut Fields<'_>) -> Option<T>) -> Option<T> {
    let mut fields = Fields::new(bytes);
    let message = read(&mut fields)?;
    fields.end().ok().map(|()| message)
}

/// Reads an id.
pub fn id(fields: &mut Fields<'_>) -> Option<Id> {
    fields.u64().ok().map(Id)
}

/// Reads a number of at most [`NUMBER_MAX`].
pub fn number(fields: &mut Fields<'_>) -> Option<u64> {
    fields.u64().ok().filter(|number| *number <= NUMBER_MAX)
}

/// Reads a number of items, of at least `bytes` bytes each; `None` if the remaining bytes cannot hold so
/// many.
pub fn count(fields: &mut Fields<'_>, bytes: usize) -> Option<usize> {
    let count = fields.u32().ok()? as usize;
    (count <= fields.clone().rest().len() / bytes).then_some(count)
}

/// Appends a number of items as four bytes.
pub fn write_count(count: usize, bytes: &mut Vec<u8>) {
    let count = u32::try_from(count).expect("fewer than 2^32 items");
    bytes.extend(count.to_le_bytes());
}

/// Appends a number as eight bytes.
pub fn write_u64(number: u64, bytes: &mut Vec<u8>) {
    bytes.extend(number.to_le_bytes());
}
