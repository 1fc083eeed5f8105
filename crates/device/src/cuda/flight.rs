//! Work under way on a device, and the report of its end.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use thinwire_codec::Finite;

use super::context::Handle;
use super::driver::{Event, Fault, NOT_READY, Status, Stream};
use super::owner::{Owner, Word, failure};
use crate::{Done, Failure, HostBytes, Region};

/// Meaning of the word that the kernels of a launch raise.
#[derive(Clone, Copy)]
pub(super) struct Verdict {
    /// The encoding is finite if the word is smaller.
    pub(super) finite_below: u32,
    /// The bytes are not a valid encoding from this value on.
    pub(super) corrupt_from: u32,
}

impl Verdict {
    /// The word means neither.
    pub(super) const NONE: Verdict = Verdict { finite_below: u32::MAX, corrupt_from: u32::MAX };
}

/// Work under way, and everything that it needs.
pub(super) struct Flight {
    pub(super) owner: Arc<Owner>,
    pub(super) is_done: AtomicBool,
    pub(super) waker: Waker,
    pub(super) parts: Mutex<Option<Parts>>,
}

pub(super) struct Parts {
    pub(super) event: Handle<Event>,
    pub(super) word: Word,
    pub(super) bytes: HostBytes,
    /// Memory that the work reads and writes.
    pub(super) regions: Vec<Region>,
}

/// Ends a flight, on a thread of the driver.
pub(super) unsafe extern "C" fn land(flight: *mut c_void) {
    // SAFETY: the pointer is that of a clone, and is given once.
    let flight = unsafe { Arc::from_raw(flight.cast_const().cast::<Flight>()) };
    flight.is_done.store(true, Ordering::Release);
    flight.waker.wake_by_ref();
    // Dropped elsewhere: memory is given back by calls of the driver, which are not allowed here.
    let owner = Arc::clone(&flight.owner);
    owner.state().ended.push(flight);
}

impl Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}

impl Drop for Flight {
    /// Returns the resources of work whose result was not asked for.
    fn drop(&mut self) {
        let parts = self.parts.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Parts { event, word, .. }) = parts.filter(|_| *self.is_done.get_mut()) {
            self.owner.state().recycle(event, word);
        }
    }
}

impl Flight {
    /// Returns the result, once the work is done or the device has failed.
    pub(super) fn result(&self, verdict: Verdict) -> Option<Done> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Parts { event, word, bytes, regions } = parts?;
        let stored = word.host.as_slice();
        let largest = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
        let mut state = self.owner.state();
        state.recycle(event, word);
        let fault = state.fault.clone();
        drop(state);
        // Perhaps the last clones: memory is given back, and owners of foreign memory are dropped.
        drop(regions);
        if let Some(fault) = fault {
            return Some(Done::failed(failure(&fault)));
        }
        let finite = Finite::from(largest < verdict.finite_below);
        let is_corrupt = largest >= verdict.corrupt_from;
        let corrupt =
            || Failure::Corrupt("the bytes are no encoding of this many elements".to_owned());
        Some(Done { finite, failure: is_corrupt.then(corrupt), largest, ..Done::new(bytes) })
    }

    /// Lets a stream wait for the work, unless it is done.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub(super) fn before(&self, stream: Stream) -> Result<(), Fault> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(parts) = parts.as_ref().filter(|_| !self.is_done.load(Ordering::Acquire)) else {
            return Ok(());
        };
        // SAFETY: event and stream are of this context.
        let status = unsafe { (self.owner.driver.cuStreamWaitEvent)(stream, parts.event.0, 0) };
        self.owner.driver.check(status)
    }

    /// Returns the fault of the context, if it had one.
    pub(super) fn fault(&self) -> Option<Fault> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let event = parts.as_ref()?.event.0;
        let _current = self.owner.enter();
        // SAFETY: the event is of this context.
        let status: Status = unsafe { (self.owner.driver.cuEventQuery)(event) };
        if status == NOT_READY { None } else { self.owner.driver.check(status).err() }
    }
}
