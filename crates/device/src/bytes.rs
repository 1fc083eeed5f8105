//! Encodings in host memory.

use std::sync::Arc;

/// Bytes in host memory that the link and devices read and write; clones share them.
///
/// Whoever has the only clone may write. A device that reads or writes them later keeps a clone meanwhile.
#[derive(Clone, Debug, Default)]
pub struct HostBytes(Option<Arc<Vec<u8>>>);

impl HostBytes {
    /// Allocates `length` zeros.
    pub fn new(length: usize) -> HostBytes {
        HostBytes(Some(Arc::new(vec![0; length])))
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |bytes| bytes)
    }

    /// Returns the bytes, to be overwritten.
    ///
    /// # Panics
    /// If there is another clone.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Some(bytes) => Arc::get_mut(bytes).expect("bytes are written by their only owner"),
            None => &mut [],
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether nobody else has a clone.
    pub fn is_unique(&mut self) -> bool {
        self.0.as_mut().is_none_or(|bytes| Arc::get_mut(bytes).is_some())
    }
}
