//! Memory of the host that a device reads and writes, and a pool of it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, PoisonError};

use super::arguments::Address;
use super::driver::{Fault, HOST_MAPPED, HOST_PORTABLE};
use super::owner::Owner;
use crate::HostBytes;
use crate::bytes::Block;

/// Largest number of bytes that the pool of a device keeps idle. With feedback, all encodings of a step
/// are held until it ends, and pinning memory within a step would hold up the device.
const IDLE_BYTES_MAX: usize = 1 << 30;

/// Memory that is locked in place, so that kernels read and write it over the bus.
#[derive(Debug)]
pub(super) struct Pinned {
    owner: Arc<Owner>,
    place: Place,
    length: usize,
}

/// Address of pinned memory on the host and on the device.
#[derive(Clone, Copy, Debug)]
struct Place {
    host: *mut u8,
    device: Address,
    capacity: usize,
}

// SAFETY: the memory belongs to whoever has the place, on any thread.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// Pinned memory that is used again, by its length.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: HashMap<usize, Vec<Place>>,
    idle_bytes: usize,
}

impl Pinned {
    /// Returns memory of `length` bytes of any content. The device's context must be current on the
    /// thread. If the system can lock no more memory, the device has failed, and the bytes are not
    /// pinned.
    pub(super) fn take(owner: &Arc<Owner>, length: usize) -> HostBytes {
        let capacity = length.next_power_of_two().max(64);
        let mut pool = owner.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let found = pool.idle.get_mut(&capacity).and_then(Vec::pop);
        pool.idle_bytes -= found.map_or(0, |place| place.capacity);
        drop(pool);
        match found.map_or_else(|| Place::new(owner, capacity), Ok) {
            Ok(place) => HostBytes::of(Pinned { owner: Arc::clone(owner), place, length }),
            Err(fault) => {
                owner.fail(fault);
                HostBytes::new(length)
            }
        }
    }

    /// Returns the address on the host.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.place.host
    }

    /// Returns the address on the device.
    pub(super) fn address(&self) -> Address {
        self.place.device
    }
}

impl Place {
    fn new(owner: &Owner, capacity: usize) -> Result<Place, Fault> {
        let driver = &owner.driver;
        let (mut host, mut device): (*mut c_void, Address) = (null_mut(), 0);
        // SAFETY: there are places for both addresses.
        unsafe {
            let flags = HOST_PORTABLE | HOST_MAPPED;
            driver.check((driver.cuMemHostAlloc)(&mut host, capacity, flags)).and_then(|()| {
                // What is read before it is written is no secret of another process.
                host.cast::<u8>().write_bytes(0, capacity);
                driver.check((driver.cuMemHostGetDevicePointer_v2)(&mut device, host, 0))
            })
        }?;
        Ok(Place { host: host.cast(), device, capacity })
    }
}

impl Block for Pinned {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory has these bytes, all of them written once, and is this value's own.
        unsafe { std::slice::from_raw_parts(self.place.host, self.length) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.place.host, self.length) }
    }
}

impl Drop for Pinned {
    /// Gives the memory to the pool, or back to the system if the pool is full.
    fn drop(&mut self) {
        let Place { host, capacity, .. } = self.place;
        let mut pool = self.owner.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.idle_bytes + capacity <= IDLE_BYTES_MAX {
            pool.idle_bytes += capacity;
            pool.idle.entry(capacity).or_default().push(self.place);
            return;
        }
        drop(pool);
        let _current = self.owner.enter();
        // SAFETY: the memory was allocated so, and nobody has it any more.
        unsafe { (self.owner.driver.cuMemFreeHost)(host.cast()) };
    }
}
