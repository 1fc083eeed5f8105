//! The handlers that XLA calls from compiled programs: one takes a bucket's gradients, the other
//! returns all averages.
//!
//! Programs of JAX, and of Keras on JAX, reach them by XLA's foreign function interface. `ready` copies
//! the gradients of one bucket and returns a token at once, so that the bucket travels during backward.
//! `finish` takes the tokens of all buckets and completes a future when the averages are written, so
//! that no thread of XLA waits. Both have the attributes `key` and `bucket`, which name the
//! synchroniser and the bucket. The state behind them is that of MindSpore's operator.
//!
//! With CUDA, arrays are in a device's memory, and are computed when XLA's stream reaches their computation; after a
//! call, XLA uses their memory for something else. So the work of a call waits for what was queued on XLA's stream
//! before it, and what is queued afterwards waits for the work of the call. On CUDA `finish` itself waits for other
//! ranks, since XLA queues nothing behind it before it returns.
#![allow(unsafe_code)]

mod api;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use thinwire_device::cuda::Cuda;
use thinwire_device::cuda::driver::Fault;
use thinwire_wire::DType;

use crate::error::Failure;
use crate::registry::{self, Known, known};
use crate::shared::Source;
use api::{Buffer, Call, CallFrame, Error};

/// The name of XLA's own capsules.
const CAPSULE: &CStr = c"xla._CUSTOM_CALL_TARGET";

/// A handler's name, its platform and itself.
type Named<T> = (&'static str, &'static str, T);

/// Returns the handlers by name and platform, as `jax.ffi.register_ffi_target` takes them.
#[pyfunction]
pub(crate) fn xla_handlers(py: Python<'_>) -> PyResult<Vec<Named<Bound<'_, PyCapsule>>>> {
    let handlers: [Named<Handler>; 4] = [
        ("thinwire_ready", "cpu", ready),
        ("thinwire_finish", "cpu", finish),
        ("thinwire_ready", "CUDA", ready_on_cuda),
        ("thinwire_finish", "CUDA", finish_on_cuda),
    ];
    let entry = |(name, platform, handler)| Ok((name, platform, capsule(py, handler)?));
    handlers.into_iter().map(entry).collect()
}

/// Makes this process end with status 1, after Python and everything that it runs at its end: a step
/// has failed, and the program has not learnt of it.
#[pyfunction]
pub(crate) fn fail_at_exit() {
    extern "C" fn fail() {
        std::process::exit(1);
    }
    // SAFETY: the function calls nothing of Python's, which has ended when it is called. Where all places are
    // taken the status stays, and the failure is printed all the same.
    unsafe { pyo3::ffi::Py_AtExit(Some(fail)) };
}

type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut Error;

fn capsule(py: Python<'_>, handler: Handler) -> PyResult<Bound<'_, PyCapsule>> {
    let pointer = NonNull::new(handler as *mut c_void).expect("a function has an address");
    // SAFETY: a function lives as long as the process, and the pointer is only called, by XLA.
    unsafe { PyCapsule::new_with_pointer(py, pointer, CAPSULE) }
}

/// Starts the exchange of a bucket's gradients.
///
/// # Safety
/// As XLA calls it.
unsafe extern "C" fn ready(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: as promised by the caller.
    unsafe { api::answer(frame, |call| started(call, &found(call)?, None)) }
}

/// Starts the exchange of a bucket's gradients on a device.
///
/// # Safety
/// As XLA calls it.
unsafe extern "C" fn ready_on_cuda(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: as promised by the caller.
    unsafe { api::answer(frame, |call| in_order(call, started)) }
}

/// Waits for all averages, on a thread of the synchroniser's.
///
/// # Safety
/// As XLA calls it.
unsafe extern "C" fn finish(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: as promised by the caller.
    unsafe { api::answer(frame, finishing) }
}

/// Waits for all averages, and queues their way to XLA's memory on a device.
///
/// # Safety
/// As XLA calls it.
unsafe extern "C" fn finish_on_cuda(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: as promised by the caller.
    unsafe { api::answer(frame, |call| in_order(call, finished)) }
}

/// Does `work` on arrays of the exchange's device, in the order of XLA's stream.
fn in_order(
    call: &Call<'_>,
    work: impl FnOnce(&Call<'_>, &Known, Option<&Cuda>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let known = found(call)?;
    let refused = |fault: Fault| {
        Failure::invalid(format!(
            "XLA's stream: {fault} (hint: the exchange is on JAX's default device, or the first one of its \
             mesh)"
        ))
    };
    registry::told(&known.shared, || {
        let device = known.device.as_ref().ok_or_else(|| {
            let expected = "expected one for cpu, for which it was made";
            Failure::invalid(format!("the exchange is in a program for CUDA, {expected}"))
        })?;
        let stream = call.stream()?;
        // SAFETY: XLA's streams are of primary contexts; the driver refuses one of another device.
        unsafe { device.after(stream) }.map_err(refused)?;
        let done = work(call, &known, Some(device));
        // After a failure, too: a part of the work may be under way.
        // SAFETY: as above.
        done.and(unsafe { device.before(stream) }.map_err(refused))
    })
}

fn started(call: &Call<'_>, known: &Known, device: Option<&Cuda>) -> Result<(), Failure> {
    let sources = sources(call.arguments()?, device);
    let bucket = call.attribute("bucket")?;
    let bucket = usize::try_from(bucket)
        .map_err(|_| Failure::invalid(format!("bucket {bucket}, expected 0 or more")))?;
    registry::ready(&known.shared, bucket, &sources)
}

fn finishing(call: &mut Call<'_>) -> Result<(), Failure> {
    let targets = sources(call.results()?, None);
    let Known { shared, background, .. } = found(call)?;
    let promise = call.promise()?;
    background.run(move || promise.complete(registry::finish(&shared, &targets)));
    Ok(())
}

fn finished(call: &Call<'_>, known: &Known, device: Option<&Cuda>) -> Result<(), Failure> {
    registry::finish(&known.shared, &sources(call.results()?, device))?;
    // No Python runs in a step that could warn.
    let staged = known.shared.with(|inner| Ok(inner.staged_at_first()))?;
    staged.into_iter().for_each(|line| known.background.log(line));
    Ok(())
}

/// The synchroniser that a call means.
fn found(call: &Call<'_>) -> Result<Known, Failure> {
    known(call.attribute("key")?)
}

/// Arrays in host memory, or in that of a device.
fn sources(buffers: Vec<Buffer>, device: Option<&Cuda>) -> Vec<Source> {
    let source = |buffer: Buffer| {
        let dtype = match buffer.dtype {
            api::F32 => Some(DType::F32),
            api::F16 => Some(DType::F16),
            api::BF16 => Some(DType::BF16),
            _ => None,
        };
        let described = Some((buffer.elements, dtype));
        Source { address: buffer.address, described, device: device.cloned() }
    };
    buffers.into_iter().map(source).collect()
}
