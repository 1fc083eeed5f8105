//! The memory of a run: bytes and their dtype; and a pool of memory for messages.
//!
//! A run moves bytes and looks at elements only where it sums, which it does in f32. Memory whose
//! elements have no [`DType`] (bytes, integers) can therefore be gathered and broadcast, but not summed.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use thinwire_device::{Device, HostBytes, Operand, Region, Source};
use thinwire_wire::DType;

/// Memory that a run reads and writes.
pub trait Buffer {
    /// Returns the type of the elements; `None` for bytes, whose elements have one byte each.
    fn dtype(&self) -> Option<DType>;

    /// Returns the elements as bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the elements as bytes, to be overwritten.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns the number of elements.
    fn elements(&self) -> usize {
        self.bytes().len() / element_bytes(self.dtype())
    }

    /// Returns the elements of a buffer of f32.
    ///
    /// # Panics
    /// If the dtype is not f32.
    fn values(&self) -> &[f32] {
        assert_eq!(self.dtype(), Some(DType::F32), "values of a buffer");
        // Empty memory of a framework has any address, aligned or not.
        match self.bytes() {
            [] => &[],
            bytes => bytemuck::cast_slice(bytes),
        }
    }

    /// Returns the elements of a buffer of f32, to be overwritten.
    ///
    /// # Panics
    /// If the dtype is not f32.
    fn values_mut(&mut self) -> &mut [f32] {
        assert_eq!(self.dtype(), Some(DType::F32), "values of a buffer");
        match self.bytes_mut() {
            [] => &mut [],
            bytes => bytemuck::cast_slice_mut(bytes),
        }
    }

    /// Returns the device in whose memory the elements lie; `None` for host memory, which the link can
    /// read and write.
    fn device(&self) -> Option<&dyn Device> {
        None
    }

    /// Returns the elements of `range` of a buffer of f32, as an operand of a device's work.
    ///
    /// # Panics
    /// If the dtype is not f32.
    fn operand(&mut self, range: Range<usize>) -> Operand<'_> {
        Operand::Host(&mut self.values_mut()[range])
    }

    /// Returns the elements of `range` of a buffer of f32, as the source of an encoding.
    ///
    /// # Panics
    /// If the dtype is not f32.
    fn source(&self, range: Range<usize>) -> Source<'_> {
        Source::Host(&self.values()[range])
    }
}

/// Memory of a device, which only work of that device reads and writes.
impl Buffer for Region {
    fn dtype(&self) -> Option<DType> {
        Some(DType::F32)
    }

    fn bytes(&self) -> &[u8] {
        panic!("{self:?} is not host memory");
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        panic!("{self:?} is not host memory");
    }

    fn elements(&self) -> usize {
        self.len()
    }

    fn device(&self) -> Option<&dyn Device> {
        Some(Region::device(self))
    }

    fn operand(&mut self, range: Range<usize>) -> Operand<'_> {
        Operand::Device(self.slice(range))
    }

    fn source(&self, range: Range<usize>) -> Source<'_> {
        Source::Device(self.slice(range))
    }
}

/// Returns the number of bytes of one element.
pub(crate) fn element_bytes(dtype: Option<DType>) -> usize {
    dtype.map_or(1, DType::size)
}

/// A type of elements that collectives can move.
pub trait Element: Pod {
    /// The dtype on the wire; `None` for bytes.
    const DTYPE: Option<DType>;
}

impl Element for u8 {
    const DTYPE: Option<DType> = None;
}

/// A type of elements that collectives can sum.
pub trait Number: Element {
    /// The dtype on the wire of sums that travel without a codec.
    const SUM: DType;

    /// Calls `work` with `values` as f32, and rounds the results to the nearest numbers of this type.
    fn as_f32<T>(values: &mut [Self], work: impl FnOnce(&mut [f32]) -> T) -> T;
}

impl Element for f32 {
    const DTYPE: Option<DType> = Some(DType::F32);
}

impl Number for f32 {
    const SUM: DType = DType::F32;

    fn as_f32<T>(values: &mut [f32], work: impl FnOnce(&mut [f32]) -> T) -> T {
        work(values)
    }
}

macro_rules! half_number {
    ($half:ty, $dtype:expr) => {
        impl Element for $half {
            const DTYPE: Option<DType> = Some($dtype);
        }

        impl Number for $half {
            const SUM: DType = $dtype;

            fn as_f32<T>(values: &mut [$half], work: impl FnOnce(&mut [f32]) -> T) -> T {
                let mut wide = values.to_f32_vec();
                let result = work(&mut wide);
                values.convert_from_f32_slice(&wide);
                result
            }
        }
    };
}

half_number!(f16, DType::F16);
half_number!(bf16, DType::BF16);

macro_rules! buffer_of_elements {
    ($buffer:ty) => {
        impl<T: Element> Buffer for $buffer {
            fn dtype(&self) -> Option<DType> {
                T::DTYPE
            }

            fn bytes(&self) -> &[u8] {
                bytemuck::cast_slice(self)
            }

            fn bytes_mut(&mut self) -> &mut [u8] {
                bytemuck::cast_slice_mut(self)
            }
        }
    };
}

buffer_of_elements!(Vec<T>);
buffer_of_elements!(&mut [T]);

/// The largest number of bytes that the pool keeps idle.
const IDLE_BYTES_MAX: usize = 64 << 20;

/// Byte buffers that are used again, so that a step allocates nothing after the first; by their length.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: HashMap<usize, Vec<HostBytes>>,
    idle_bytes: usize,
}

impl Pool {
    /// Returns a buffer of `length` bytes of any content; a device has a pool of its own.
    pub(crate) fn take(&mut self, length: usize, device: Option<&dyn Device>) -> HostBytes {
        if let Some(device) = device {
            return device.host(length);
        }
        match self.idle.get_mut(&length).and_then(Vec::pop) {
            Some(buffer) => {
                self.idle_bytes -= length;
                buffer
            }
            None => HostBytes::new(length),
        }
    }

    /// Takes a buffer back, which is used again once no device reads it any more.
    pub(crate) fn put(&mut self, mut buffer: HostBytes) {
        let has_room = self.idle_bytes + buffer.len() <= IDLE_BYTES_MAX;
        let is_own = buffer.block::<Vec<u8>>().is_some();
        if is_own && !buffer.is_empty() && has_room && buffer.is_unique() {
            self.idle_bytes += buffer.len();
            self.idle.entry(buffer.len()).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty memory at an address where no f32 can be.
    struct Nowhere([u8; 8]);

    impl Nowhere {
        /// Offset of the first byte that is not aligned.
        fn odd(&self) -> usize {
            usize::from(self.0.as_ptr().addr().is_multiple_of(2))
        }
    }

    impl Buffer for Nowhere {
        fn dtype(&self) -> Option<DType> {
            Some(DType::F32)
        }

        fn bytes(&self) -> &[u8] {
            &self.0[self.odd()..][..0]
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            let odd = self.odd();
            &mut self.0[odd..][..0]
        }
    }

    #[test]
    fn empty_memory_may_lie_anywhere() {
        let mut nowhere = Nowhere([0; 8]);
        assert!(nowhere.values().is_empty() && nowhere.values_mut().is_empty());
    }
}
