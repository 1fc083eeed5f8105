//! Encodings in host memory.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Bytes in host memory that the link and devices read and write; clones share them.
///
/// The holder of the only clone may write. A device that reads or writes the bytes later keeps a clone
/// until then.
#[derive(Clone, Debug, Default)]
pub struct HostBytes(Option<Arc<dyn Block>>);

/// Memory of [`HostBytes`], such as a vector, or memory that is pinned for a device.
pub trait Block: Any + Debug + Send + Sync {
    /// Returns the bytes.
    fn as_slice(&self) -> &[u8];

    /// Returns the bytes, to be overwritten.
    fn as_mut_slice(&mut self) -> &mut [u8];
}

impl Block for Vec<u8> {
    fn as_slice(&self) -> &[u8] {
        self
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        self
    }
}

impl HostBytes {
    /// Allocates `length` zeros.
    pub fn new(length: usize) -> HostBytes {
        HostBytes::of(vec![0; length])
    }

    /// Returns the bytes of this memory.
    pub fn of(block: impl Block) -> HostBytes {
        HostBytes(Some(Arc::new(block)))
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |block| block.as_slice())
    }

    /// Returns the bytes, to be overwritten.
    ///
    /// # Panics
    /// If there is another clone.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Some(block) => {
                Arc::get_mut(block).expect("bytes are written by their only owner").as_mut_slice()
            }
            None => &mut [],
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether there is no other clone.
    pub fn is_unique(&mut self) -> bool {
        self.0.as_mut().is_none_or(|block| Arc::get_mut(block).is_some())
    }

    /// Returns the memory if it is of type `T`; a device recognises its own memory in this way.
    pub fn block<T: Block>(&self) -> Option<&T> {
        let block: &dyn Any = self.0.as_deref()?;
        block.downcast_ref()
    }
}
