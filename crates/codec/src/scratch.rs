//! Bytes that a thread needs while it encodes or decodes a message.

use std::cell::RefCell;

/// Calls `body` with so many bytes, with whatever was in them. A thread keeps as many as it ever
/// needed at once, because memory that the system hands out anew costs as much as encoding into it.
///
/// # Panics
/// If `body` asks for scratch bytes, too.
pub(crate) fn with_scratch<T>(length: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    BYTES.with_borrow_mut(|bytes| {
        if bytes.len() < length {
            bytes.resize(length, 0);
        }
        body(&mut bytes[..length])
    })
}
