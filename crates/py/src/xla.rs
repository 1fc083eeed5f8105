//! The handlers that XLA calls from compiled programs: one takes a bucket's gradients, the other
//! returns all averages.
//!
//! Programs of JAX, and of Keras on JAX, reach them by XLA's foreign function interface. `ready` copies
//! the gradients of one bucket and returns a token at once, so that the bucket travels during backward.
//! `finish` takes the tokens of all buckets and completes a future when the averages are written, so
//! that no thread of XLA waits. Both have the attributes `key` and `bucket`, which name the
//! synchroniser and the bucket. The state behind them is that of MindSpore's operator.
#![allow(unsafe_code)]

mod api;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use thinwire_wire::DType;

use crate::error::Failure;
use crate::registry::{self, known};
use crate::shared::Source;
use api::{Buffer, Call, CallFrame, Error};

/// The name of XLA's own capsules.
const CAPSULE: &CStr = c"xla._CUSTOM_CALL_TARGET";

/// Returns the handlers by name, as `jax.ffi.register_ffi_target` takes them.
#[pyfunction]
pub(crate) fn xla_handlers(py: Python<'_>) -> PyResult<[(&'static str, Bound<'_, PyCapsule>); 2]> {
    let handlers: [(_, Handler); 2] = [("thinwire_ready", ready), ("thinwire_finish", finish)];
    let [(first, ready), (second, finish)] = handlers;
    Ok([(first, capsule(py, ready)?), (second, capsule(py, finish)?)])
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
    unsafe { api::answer(frame, started) }
}

/// Waits for all averages, on a thread of the synchroniser's.
///
/// # Safety
/// As XLA calls it.
unsafe extern "C" fn finish(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: as promised by the caller.
    unsafe { api::answer(frame, finishing) }
}

fn started(call: &mut Call<'_>) -> Result<(), Failure> {
    let sources = call.arguments()?.into_iter().map(source).collect::<Vec<_>>();
    let bucket = call.attribute("bucket")?;
    let bucket = usize::try_from(bucket)
        .map_err(|_| Failure::invalid(format!("bucket {bucket}, expected 0 or more")))?;
    registry::ready(&known(call.attribute("key")?)?.shared, bucket, &sources)
}

fn finishing(call: &mut Call<'_>) -> Result<(), Failure> {
    let targets = call.results()?.into_iter().map(source).collect::<Vec<_>>();
    let known = known(call.attribute("key")?)?;
    let promise = call.promise()?;
    let shared = known.shared;
    known.background.run(move || promise.complete(registry::finish(&shared, &targets)));
    Ok(())
}

fn source(buffer: Buffer) -> Source {
    let dtype = match buffer.dtype {
        api::F32 => Some(DType::F32),
        api::F16 => Some(DType::F16),
        api::BF16 => Some(DType::BF16),
        _ => None,
    };
    Source { address: buffer.address, described: Some((buffer.elements, dtype)) }
}
