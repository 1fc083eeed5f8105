//! The memory of a bucket: an owned vector, or an external buffer of the framework.
//!
//! A bucket that loses nothing can be averaged where the framework has gathered it, without a copy.

use std::fmt;

use thinwire_collective::Buffer;
use thinwire_wire::DType;

/// Memory of the framework, which keeps it alive and leaves it alone until the step is finished.
pub trait ExternalBuffer: Send {
    /// Returns the values, to read.
    fn values(&self) -> &[f32];
    /// Returns the values, to write.
    fn values_mut(&mut self) -> &mut [f32];
}

/// The values of a run, in f32.
pub enum Tensor {
    /// A vector.
    Owned(Vec<f32>),
    /// Memory of a framework.
    External(Box<dyn ExternalBuffer>),
}

impl Tensor {
    /// Returns the owned vector; an empty one for an external buffer.
    pub fn into_owned(self) -> Vec<f32> {
        match self {
            Tensor::Owned(values) => values,
            Tensor::External(_) => Vec::new(),
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
            Tensor::External(buffer) => buffer.values(),
        }
    }
}

impl AsMut<[f32]> for Tensor {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Tensor::Owned(values) => values,
            Tensor::External(buffer) => buffer.values_mut(),
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
        let name = if matches!(self, Tensor::Owned(_)) { "Owned" } else { "External" };
        write!(f, "{name}({} elements)", self.as_ref().len())
    }
}
