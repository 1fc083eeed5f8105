//! The memory of a bucket: its own, or lent by the framework.
//!
//! A bucket that loses nothing can be averaged where the framework has gathered it, without a copy.

use std::fmt;

use thinwire_collective::Buffer;
use thinwire_wire::DType;

/// Memory that somebody else keeps alive and leaves alone until the step is finished.
pub trait Lent: Send {
    /// The values, to read.
    fn values(&self) -> &[f32];
    /// The values, to write.
    fn values_mut(&mut self) -> &mut [f32];
}

/// What a run works on.
pub(crate) enum Tensor {
    /// Memory of its own.
    Owned(Vec<f32>),
    /// A framework's.
    Lent(Box<dyn Lent>),
}

impl Tensor {
    /// Its own memory; empty if it was lent.
    pub(crate) fn into_owned(self) -> Vec<f32> {
        match self {
            Tensor::Owned(values) => values,
            Tensor::Lent(_) => Vec::new(),
        }
    }
}

impl Default for Tensor {
    fn default() -> Tensor {
        Tensor::Owned(Vec::new())
    }
}

impl AsRef<[f32]> for Tensor {
    fn as_ref(&self) -> &[f32] {
        match self {
            Tensor::Owned(values) => values,
            Tensor::Lent(memory) => memory.values(),
        }
    }
}

impl AsMut<[f32]> for Tensor {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Tensor::Owned(values) => values,
            Tensor::Lent(memory) => memory.values_mut(),
        }
    }
}

impl Buffer for Tensor {
    fn dtype(&self) -> Option<DType> {
        Some(DType::F32)
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.as_ref())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.as_mut())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if matches!(self, Tensor::Owned(_)) { "Owned" } else { "Lent" };
        write!(f, "{name}({} elements)", self.as_ref().len())
    }
}
