//! Values in host memory or in the memory of a device.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::Device;

/// Memory of a device that holds f32, freed when its last [`Region`] is dropped.
pub trait Allocation: Any + Debug + Send + Sync {
    /// Returns the device that owns the memory.
    fn device(&self) -> &dyn Device;

    /// Returns the number of f32.
    fn elements(&self) -> usize;
}

/// Range of an [`Allocation`]; clones share the memory and keep it alive.
#[derive(Clone, Debug)]
pub struct Region {
    allocation: Arc<dyn Allocation>,
    elements: Range<usize>,
}

impl Region {
    /// Returns all of an allocation.
    pub fn new(allocation: Arc<dyn Allocation>) -> Region {
        let elements = 0..allocation.elements();
        Region { allocation, elements }
    }

    /// Returns a range of this region, counted from its first element.
    ///
    /// # Panics
    /// If the range ends behind the region.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Region {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "elements {range:?} of {}",
            self.len()
        );
        let first = self.elements.start;
        let elements = first + range.start..first + range.end;
        Region { allocation: Arc::clone(&self.allocation), elements }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns the range of this region's elements within its allocation.
    pub fn elements(&self) -> Range<usize> {
        self.elements.clone()
    }

    /// Waits until all work that was submitted before is done, and returns a copy of the values in host
    /// memory.
    pub fn fetch(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.device().read(self, &mut values);
        values
    }

    /// Returns the device that owns the memory.
    pub fn device(&self) -> &dyn Device {
        self.allocation.device()
    }

    /// Returns the allocation if it is of type `T`; a device recognises its own memory in this way.
    pub fn allocation<T: Allocation>(&self) -> Option<&T> {
        let allocation: &dyn Any = self.allocation.as_ref();
        allocation.downcast_ref()
    }
}

/// Values in host memory, borrowed as `H`, or in the memory of a device.
#[derive(Debug)]
pub enum Values<H> {
    /// In host memory.
    Host(H),
    /// In the memory of a device.
    Device(Region),
}

/// Values that work changes.
pub type Operand<'a> = Values<&'a mut [f32]>;

/// Values that work reads, in the same memory as those that it changes.
pub type Source<'a> = Values<&'a [f32]>;

impl<H> Values<H> {
    /// Returns the region, if the values lie in the memory of a device.
    pub fn on_device(&self) -> Option<&Region> {
        match self {
            Values::Host(_) => None,
            Values::Device(region) => Some(region),
        }
    }
}

impl<H: AsRef<[f32]>> Values<H> {
    /// Returns the values.
    ///
    /// # Panics
    /// If they lie in the memory of a device.
    pub fn host(self) -> H {
        match self {
            Values::Host(values) => values,
            Values::Device(region) => panic!("{region:?} is not host memory"),
        }
    }

    /// Returns the memory of a device.
    ///
    /// # Panics
    /// If the values lie in host memory.
    pub fn region(self) -> Region {
        match self {
            Values::Host(values) => {
                panic!("{} values in host memory, for a device", values.as_ref().len())
            }
            Values::Device(region) => region,
        }
    }
}
