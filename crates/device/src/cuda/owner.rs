//! State that all clones of a device share: context, streams, modules, and resources that are used
//! again.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Debug;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::arguments::Address;
use super::context::{Current, Handle, made};
use super::driver::{
    Context, Driver, EVENT_DISABLE_TIMING, Event, Fault, Function, Module, Stream,
};
use super::kernel::{Kernel, Source};
use super::nvrtc::Image;
use super::pinned::{Pinned, Pool};
use crate::{Failure, HostBytes, Region};

/// NVIDIA device, with kernels for the codecs. Clones are the same device, which stays in use until the
/// process ends.
#[derive(Clone, Debug)]
pub struct Cuda(pub(super) Arc<Owner>);

/// State that all clones share.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) driver: Driver,
    pub(super) context: Handle<Context>,
    /// Stream of work on this device's own memory.
    pub(super) work: Handle<Stream>,
    /// Stream of work that reads or writes a framework's memory, which may have to wait for the
    /// framework's computation. On the other stream it would hold up work on gradients that are ready.
    pub(super) outer: Handle<Stream>,
    /// Stream of host functions.
    pub(super) calls: Handle<Stream>,
    pub(super) images: Mutex<Images>,
    /// Held while work is queued, so that the launches of one work follow each other. The region holds
    /// intermediate results, and all work shares it.
    pub(super) queue: Mutex<Option<Region>>,
    pub(super) state: Mutex<State>,
    pub(super) pool: Mutex<Pool>,
    pub(super) allocator: OnceLock<Arc<dyn Allocator>>,
}

/// Allocator of a framework. The framework holds most of a device's memory, and reuses it without
/// asking the driver.
pub trait Allocator: Debug + Send + Sync {
    /// Returns the address of `bytes` bytes for work on the device's stream; `None` if there is no more
    /// memory.
    fn allocate(&self, bytes: usize) -> Option<Address>;

    /// Takes memory back; work on the device's stream may still use it.
    fn free(&self, address: Address);
}

/// Images that the driver loads for files of kernels.
pub(super) struct Images(pub(super) MakeImage);

/// Function that returns an image.
type MakeImage = Box<dyn FnMut(Source) -> Result<Image, Fault> + Send>;

impl Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Modules of files, or the reason why there is none, so that nothing is compiled in vain twice.
    modules: HashMap<Source, Result<Handle<Module>, Fault>>,
    functions: HashMap<&'static str, Handle<Function>>,
    events: Vec<Handle<Event>>,
    words: Vec<Word>,
    /// First fault of the device, after which it accepts no work.
    pub(super) fault: Option<Fault>,
    /// Work that a host function has ended, to be dropped by another thread.
    pub(super) ended: Vec<Arc<dyn Debug + Send + Sync>>,
}

impl State {
    /// Takes back the resources of work that has ended.
    pub(super) fn recycle(&mut self, event: Handle<Event>, word: Word) {
        self.events.push(event);
        self.words.push(word);
    }
}

/// A u32 on the device that kernels raise, and the place to which it is copied.
#[derive(Debug)]
pub(super) struct Word {
    pub(super) device: Address,
    pub(super) host: HostBytes,
}

impl Owner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context current on the calling thread, until the result is dropped.
    pub(super) fn enter(&self) -> Current<'_> {
        Current::enter(&self.driver, self.context.0)
    }

    /// Records a fault, after which the device accepts no work; returns it as the reason of a failure.
    pub(super) fn fail(&self, fault: Fault) -> Failure {
        failure(self.state().fault.get_or_insert(fault))
    }

    /// Drops the objects that host functions have left.
    pub(super) fn bury(&self) {
        let ended = std::mem::take(&mut self.state().ended);
        drop(ended);
    }

    pub(super) fn function(&self, kernel: Kernel) -> Result<Function, Fault> {
        if let Some(function) = self.state().functions.get(kernel.name) {
            return Ok(function.0);
        }
        let name = CString::new(kernel.name).expect("names of kernels have no zero");
        let module = self.module(kernel.source)?;
        let function = made(&self.driver, null_mut(), |place| {
            // SAFETY: the module is loaded, and the name ends in a zero.
            unsafe { (self.driver.cuModuleGetFunction)(place, module, name.as_ptr()) }
        })?;
        self.state().functions.insert(kernel.name, Handle(function));
        Ok(function)
    }

    pub(super) fn module(&self, source: Source) -> Result<Module, Fault> {
        if let Some(module) = self.state().modules.get(&source) {
            return module.as_ref().map(|module| module.0).map_err(Fault::clone);
        }
        let image = (self.images.lock().unwrap_or_else(PoisonError::into_inner).0)(source);
        let module = image.and_then(|image| {
            made(&self.driver, null_mut(), |place| {
                // SAFETY: images end in a zero or have their length in their head.
                unsafe { (self.driver.cuModuleLoadData)(place, image.bytes().as_ptr().cast()) }
            })
        });
        self.state().modules.insert(source, module.clone().map(Handle));
        module
    }

    pub(super) fn event(&self) -> Result<Event, Fault> {
        if let Some(event) = self.state().events.pop() {
            return Ok(event.0);
        }
        made(&self.driver, null_mut(), |place| {
            // SAFETY: there is a place for the event.
            unsafe { (self.driver.cuEventCreate)(place, EVENT_DISABLE_TIMING) }
        })
    }

    /// Returns a word that is 0 for everything that is queued on `stream` from now on.
    pub(super) fn word(self: &Arc<Owner>, stream: Stream) -> Result<Word, Fault> {
        let found = self.state().words.pop();
        let word = match found {
            Some(word) => word,
            None => {
                let device = made(&self.driver, 0, |place| {
                    // SAFETY: there is a place for the address.
                    unsafe { (self.driver.cuMemAlloc_v2)(place, 4) }
                })?;
                Word { device, host: Pinned::take(self, 4) }
            }
        };
        if word.host.block::<Pinned>().is_none() {
            return Err(Fault::out_of_memory());
        }
        // SAFETY: the word is 4 bytes of the device.
        let status = unsafe { (self.driver.cuMemsetD32Async)(word.device, 0, 1, stream) };
        self.driver.check(status).map(|()| word)
    }

    /// Waits until a stream has done everything.
    pub(super) fn drain(&self, stream: Stream) -> Result<(), Fault> {
        // SAFETY: the stream is of this context.
        self.driver.check(unsafe { (self.driver.cuStreamSynchronize)(stream) })
    }

    /// Lets `later` wait for everything that is queued on `earlier`.
    pub(super) fn order(&self, earlier: Stream, later: Stream) -> Result<(), Fault> {
        let _current = self.enter();
        let event = self.event()?;
        // SAFETY: event and streams are of this context.
        unsafe {
            self.driver.check((self.driver.cuEventRecord)(event, earlier))?;
            self.driver.check((self.driver.cuStreamWaitEvent)(later, event, 0))?;
        }
        // A wait is for the record before it, so the event may be recorded again.
        self.state().events.push(Handle(event));
        Ok(())
    }

    /// Returns the stream for work on foreign memory, which the framework may still compute or read. The work begins
    /// after all work so far, which waits for no framework.
    ///
    /// # Errors
    /// If the driver refuses the order.
    pub(super) fn outer_in_order(&self) -> Result<Stream, Fault> {
        self.order(self.work.0, self.outer.0)?;
        Ok(self.outer.0)
    }
}

pub(super) fn failure(fault: &Fault) -> Failure {
    let hint = match *fault == Fault::out_of_memory() {
        true => {
            " (hint: the exchange keeps 4 bytes per parameter on the device, and 4 more for a residual; \
             device=\"host\" in Python keeps them in host memory)"
        }
        false => "",
    };
    Failure::Device(format!("a device has failed: {fault}{hint}"))
}
