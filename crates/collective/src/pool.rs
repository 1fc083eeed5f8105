//! Byte buffers that are used again, so that a step allocates nothing after the first.

use std::collections::HashMap;

/// The most bytes that the pool keeps idle.
const IDLE_BYTES_MAX: usize = 64 << 20;

/// Idle buffers by their length.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: HashMap<usize, Vec<Vec<u8>>>,
    idle_bytes: usize,
}

impl Pool {
    /// A buffer of `length` bytes with whatever was in it.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        match self.idle.get_mut(&length).and_then(Vec::pop) {
            Some(buffer) => {
                self.idle_bytes -= length;
                buffer
            }
            None => vec![0; length],
        }
    }

    /// Gives a buffer back.
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        if !buffer.is_empty() && self.idle_bytes + buffer.len() <= IDLE_BYTES_MAX {
            self.idle_bytes += buffer.len();
            self.idle.entry(buffer.len()).or_default().push(buffer);
        }
    }
}
