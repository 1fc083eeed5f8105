//! A CUDA device with a simulated driver, which needs no GPU. Kernels run on the host, late, and
//! interleaved as drawn from a seed.

use std::sync::Arc;

use thinwire_device::cuda::arguments::Address;
use thinwire_device::cuda::simulated::{break_down, cuda, foreign, host, mistakes};
use thinwire_device::cuda::{Allocator, Cuda};
use thinwire_device::{Device, Region};

/// Device, and its number in the simulated driver.
#[derive(Clone, Debug)]
pub struct Simulated {
    cuda: Cuda,
    number: i32,
}

impl Simulated {
    /// Returns a device whose delays depend on `seed`. If there is no compiler for the kernels, prints a
    /// message and returns `None`.
    ///
    /// # Panics
    /// If the simulated driver fails.
    pub fn new(seed: u64) -> Option<Simulated> {
        if !host::is_there() {
            return None;
        }
        let (cuda, number) = cuda(seed).expect("a simulated device starts");
        Some(Simulated { cuda, number })
    }

    /// Allocates memory for `values`, which are copied to it.
    pub fn region(&self, values: &[f32]) -> Region {
        self.cuda.upload(values)
    }

    /// Returns `values` in memory of a framework on the device.
    pub fn gradient(&self, values: &[f32]) -> Region {
        foreign(&self.cuda, self.region(values))
    }

    /// Uses up the device's memory, so that nothing more can be allocated.
    pub fn exhaust(&self) {
        self.cuda.allocate_by(Arc::new(Exhausted));
    }

    /// Breaks the device's context: no work continues, and nothing is reported.
    pub fn break_down(&self) {
        break_down(self.number);
    }

    /// Returns the mistakes that the driver has found without reporting them.
    pub fn mistakes(&self) -> Vec<String> {
        mistakes(self.number)
    }
}

/// Allocator that has no memory.
#[derive(Debug)]
struct Exhausted;

impl Allocator for Exhausted {
    fn allocate(&self, _bytes: usize) -> Option<Address> {
        None
    }

    fn free(&self, _address: Address) {}
}
