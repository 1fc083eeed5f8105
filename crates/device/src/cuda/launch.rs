//! Launches of one work, and the memory that they keep until they are done.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::arguments::{self, Address};
use super::context::Handle;
use super::driver::{Fault, Stream};
use super::flight::{Flight, Parts, land};
use super::kernel::{Code, Grid, Kernel};
use super::memory::Memory;
use super::owner::{Cuda, Owner, Word};
use super::pinned::Pinned;
use crate::{Device, HostBytes, Region};

/// One submission: the memory that it keeps, and the stream on which it runs.
pub(super) struct Launch<'a> {
    pub(super) owner: &'a Arc<Owner>,
    pub(super) stream: Stream,
    pub(super) word: Word,
    pub(super) regions: Vec<Region>,
    pub(super) bytes: HostBytes,
    pub(super) scratch: &'a mut Option<Region>,
    /// Fault before the first launch.
    pub(super) fault: Option<Fault>,
}

impl Launch<'_> {
    /// Keeps a region until the work is done; returns its address.
    pub(super) fn region(&mut self, device: &Cuda, region: Region) -> Address {
        let address = device.address(&region);
        let waited = Memory::of(&region).wait_for_outer(self.stream);
        self.fault = self.fault.take().or(waited.err());
        self.regions.push(region);
        address
    }

    /// Keeps a region, which must have `length` elements.
    pub(super) fn other(&mut self, device: &Cuda, region: Region, length: usize) -> Address {
        assert_eq!(region.len(), length, "values of one work");
        self.region(device, region)
    }

    /// Returns the address of `words` words for intermediate results.
    pub(super) fn scratch(&mut self, device: &Cuda, words: usize) -> Address {
        let found = self.scratch.take().filter(|region| region.len() >= words);
        let region = found.unwrap_or_else(|| device.allocate(words));
        *self.scratch = Some(region.clone());
        self.region(device, region)
    }

    /// Keeps bytes until the work is done; returns their address on the device.
    pub(super) fn bytes(&mut self, bytes: HostBytes) -> Address {
        self.bytes = match bytes.block::<Pinned>() {
            Some(_) => bytes,
            // Bytes from elsewhere, which this device cannot reach.
            None => {
                let mut pinned = Pinned::take(self.owner, bytes.len());
                pinned.as_mut_slice().copy_from_slice(bytes.as_slice());
                pinned
            }
        };
        self.bytes.block::<Pinned>().map_or(0, Pinned::address)
    }

    pub(super) fn cast(&self, values: Address, length: usize) -> arguments::Cast {
        arguments::Cast { values, length: length as u64, ..arguments::Cast::default() }
    }

    pub(super) fn code(&self, code: &Code, values: Address, length: usize) -> arguments::Code {
        let (length, parameters) = (length as u64, code.parameters);
        arguments::Code { values, length, parameters, ..arguments::Code::default() }
    }

    pub(super) fn canonicalise(
        &self,
        code: &Code,
        values: Address,
        length: usize,
    ) -> Result<(), Fault> {
        let Some(kernel) = code.canonicalise else { return Ok(()) };
        self.run(kernel, code.grid(length), &self.code(code, values, length))
    }

    pub(super) fn run<A: arguments::Arguments>(
        &self,
        kernel: Kernel,
        grid: Grid,
        arguments: &A,
    ) -> Result<(), Fault> {
        // What this work needs may have been missing.
        if let Some(fault) = self.fault.clone().or_else(|| self.owner.state().fault.clone()) {
            return Err(fault);
        }
        let function = self.owner.function(kernel)?;
        // SAFETY: the table has the kernel's arguments, and the launch keeps the memory that they name.
        unsafe { self.owner.driver.launch(function, grid, arguments, self.stream) }
    }

    /// Queues the end of the launch, and returns the flight that reports it.
    pub(super) fn depart(&self, waker: &Waker) -> Result<Arc<Flight>, Fault> {
        let owner = self.owner;
        let event = owner.event()?;
        let (work, calls) = (self.stream, owner.calls.0);
        let word = &self.word;
        let host = word.host.block::<Pinned>().expect("words are pinned").pointer();
        // SAFETY: the word and its place have 4 bytes, and stay until the flight has ended.
        unsafe {
            let driver = &owner.driver;
            driver.check((driver.cuMemcpyDtoHAsync_v2)(host.cast(), word.device, 4, work))?;
            driver.check((driver.cuEventRecord)(event, work))?;
            driver.check((driver.cuStreamWaitEvent)(calls, event, 0))?;
        }
        let word = Word { device: word.device, host: word.host.clone() };
        let (regions, bytes) = (self.regions.clone(), self.bytes.clone());
        let parts = Parts { event: Handle(event), word, bytes, regions };
        let flight = Arc::new(Flight {
            owner: Arc::clone(owner),
            is_done: AtomicBool::new(false),
            waker: waker.clone(),
            parts: Mutex::new(Some(parts)),
        });
        let argument = Arc::into_raw(Arc::clone(&flight)).cast_mut().cast::<c_void>();
        // SAFETY: the host function takes the clone of the flight, once.
        let status = unsafe { (owner.driver.cuLaunchHostFunc)(calls, land, argument) };
        if let Err(fault) = owner.driver.check(status) {
            // SAFETY: it was not queued, so that nobody else takes the clone.
            drop(unsafe { Arc::from_raw(argument.cast_const().cast::<Flight>()) });
            return Err(fault);
        }
        if self.stream == owner.outer.0 {
            self.regions.iter().for_each(|region| Memory::of(region).used_by_outer(&flight));
        }
        Ok(flight)
    }
}
