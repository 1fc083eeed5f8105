//! The memory of a bucket: an owned vector, an external buffer of the framework, or memory of a device.
//!
//! A bucket that loses nothing can be averaged where the framework has gathered it, without a copy.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::task::Waker;

use thinwire_collective::Buffer;
use thinwire_device::{Change, Device, Operand, Region, Source, Work, submit};
use thinwire_wire::DType;

/// Memory of the framework. The framework keeps the memory alive, and neither reads nor writes it
/// until the step is finished.
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
    /// Memory of a device.
    Device(Region),
}

impl Tensor {
    /// Returns the owned vector, or a copy of the values on a device; an empty vector for an external
    /// buffer.
    pub fn into_owned(self) -> Vec<f32> {
        match self {
            Tensor::Owned(values) => values,
            Tensor::External(_) => Vec::new(),
            Tensor::Device(region) => region.fetch(),
        }
    }

    /// Returns the values in host memory, copied there if a device has them.
    pub(crate) fn to_host(&self) -> Cow<'_, [f32]> {
        match self {
            Tensor::Device(region) => Cow::Owned(region.fetch()),
            host => Cow::Borrowed(host.as_ref()),
        }
    }

    /// Returns the values as an owned vector to write, copied to host memory if a device has them.
    pub(crate) fn owned_mut(&mut self) -> &mut Vec<f32> {
        if !matches!(self, Tensor::Owned(_)) {
            *self = Tensor::Owned(self.to_host().into_owned());
        }
        match self {
            Tensor::Owned(values) => values,
            _ => unreachable!("it was made an owned vector"),
        }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        match self {
            Tensor::Device(region) => region.len(),
            host => host.as_ref().len(),
        }
    }

    /// Moves the values to the memory in which `other` lies, if they lie elsewhere.
    pub(crate) fn move_beside(&mut self, other: &Tensor) {
        let id = |tensor: &Tensor| tensor.device().map(|device| device.id());
        if self.len() == 0 || id(self) == id(other) {
            return;
        }
        let host = self.to_host().into_owned();
        *self = match other {
            Tensor::Device(beside) => Tensor::Device(beside.device().upload(&host)),
            _ => Tensor::Owned(host),
        };
    }

    /// Returns a range of the values in host memory, copied there if a device has them.
    pub(crate) fn range_to_host(&self, range: Range<usize>) -> Vec<f32> {
        match self {
            Tensor::Device(region) => region.slice(range).fetch(),
            host => host.as_ref()[range].to_vec(),
        }
    }

    /// Changes the values of a range; a device does it later, in its turn. If the device has failed,
    /// the work that follows reports it.
    pub(crate) fn change(&mut self, range: Range<usize>, change: Change<Source<'_>>) {
        submit(Work::Change(self.operand(range), change), Waker::noop());
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
            Tensor::Device(region) => panic!("{region:?} is not host memory"),
        }
    }
}

impl AsMut<[f32]> for Tensor {
    fn as_mut(&mut self) -> &mut [f32] {
        match self {
            Tensor::Owned(values) => values,
            Tensor::External(buffer) => buffer.values_mut(),
            Tensor::Device(region) => panic!("{region:?} is not host memory"),
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

    fn elements(&self) -> usize {
        self.len()
    }

    fn device(&self) -> Option<&dyn Device> {
        match self {
            Tensor::Device(region) => Some(region.device()),
            _ => None,
        }
    }

    fn operand(&mut self, range: Range<usize>) -> Operand<'_> {
        match self {
            Tensor::Device(region) => Operand::Device(region.slice(range)),
            host => Operand::Host(&mut host.as_mut()[range]),
        }
    }

    fn source(&self, range: Range<usize>) -> Source<'_> {
        match self {
            Tensor::Device(region) => Source::Device(region.slice(range)),
            host => Source::Host(&host.as_ref()[range]),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Tensor::Owned(_) => "Owned",
            Tensor::External(_) => "External",
            Tensor::Device(_) => "Device",
        };
        write!(f, "{name}({} elements)", self.len())
    }
}
