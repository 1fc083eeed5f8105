//! Scratch memory of a thread that encodes or decodes a message.

use std::cell::RefCell;

/// Calls `body` with `length` bytes of any content. Each thread keeps the most bytes that it ever needed,
/// because first touching new memory takes as long as encoding into it.
///
/// # Panics
/// If `body` calls this function, too.
pub(crate) fn with_scratch<T>(length: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    BYTES.with_borrow_mut(|bytes| {
        if bytes.len() < length {
            bytes.resize(length, 0);
        }
        body(&mut bytes[..length])
    })
}
