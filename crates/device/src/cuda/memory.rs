//! Memory of a device, and where it comes from.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::arguments::Address;
use super::owner::{Allocator, Cuda};
use crate::{Allocation, Device};

/// Memory of the device.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) device: Cuda,
    pub(super) address: Address,
    pub(super) elements: usize,
    pub(super) origin: Origin,
}

/// Where memory comes from, and what becomes of it.
#[derive(Debug)]
pub(super) enum Origin {
    /// The driver, which takes it back.
    Driver,
    /// A framework's allocator, which takes it back.
    Allocator(Arc<dyn Allocator>),
    /// A framework, whose memory this keeps alive.
    #[expect(dead_code, reason = "it is kept until it is dropped")]
    Kept(Box<dyn Kept>),
    /// None: there was no more.
    Nowhere,
}

/// Owner of foreign memory, such as a framework's tensor. It is dropped when no work needs it, by the thread
/// that asks for a result or submits more work.
pub trait Kept: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> Kept for T {}

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
