//! Memory of a device, and its origin.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::arguments::Address;
use super::driver::{Fault, Stream};
use super::flight::Flight;
use super::owner::{Allocator, Cuda};
use crate::{Allocation, Device, Region};

/// Memory of the device.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) device: Cuda,
    pub(super) address: Address,
    elements: usize,
    origin: Origin,
    /// Last work on the stream of a framework's memory, while it is under way.
    outer: Mutex<Weak<Flight>>,
}

/// Origin of memory, which gets it back.
#[derive(Debug)]
pub(super) enum Origin {
    /// The driver, which takes it back.
    Driver,
    /// A framework's allocator, which takes it back.
    Allocator(Arc<dyn Allocator>),
    /// A framework, whose memory this keeps alive.
    #[expect(dead_code, reason = "it is kept until it is dropped")]
    Kept(Box<dyn Kept>),
    /// None: the device had no more.
    Nowhere,
}

/// Owner of foreign memory, such as a framework's tensor. Once no work needs it any more, the next thread
/// that submits work or asks for a result drops it.
pub trait Kept: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> Kept for T {}

impl Memory {
    pub(super) fn new(
        device: &Cuda,
        address: Address,
        elements: usize,
        origin: Origin,
    ) -> Arc<Memory> {
        let (device, outer) = (device.clone(), Mutex::default());
        Arc::new(Memory { device, address, elements, origin, outer })
    }

    /// Returns the memory of a region.
    pub(super) fn of(region: &Region) -> &Memory {
        region.allocation::<Memory>().expect("work of a device is on its own memory")
    }

    /// Returns whether the memory is a framework's.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.origin, Origin::Kept(_))
    }

    /// Records work on the stream of a framework's memory.
    pub(super) fn used_by_outer(&self, flight: &Arc<Flight>) {
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(flight);
    }

    /// Lets a stream wait for the last work on the stream of a framework's memory, unless that work is
    /// done.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub(super) fn wait_for_outer(&self, stream: Stream) -> Result<(), Fault> {
        let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        match outer {
            Some(flight) if stream != self.device.0.outer.0 => flight.before(stream),
            _ => Ok(()),
        }
    }
}

impl Allocation for Memory {
    fn device(&self) -> &dyn Device {
        &self.device
    }

    fn elements(&self) -> usize {
        self.elements
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.origin {
            Origin::Driver => {
                let owner = &self.device.0;
                let _current = owner.enter();
                // SAFETY: the memory was allocated, and work on it has ended. A failed context frees nothing.
                unsafe { (owner.driver.cuMemFree_v2)(self.address) };
            }
            Origin::Allocator(allocator) => allocator.free(self.address),
            Origin::Kept(_) | Origin::Nowhere => {}
        }
    }
}
