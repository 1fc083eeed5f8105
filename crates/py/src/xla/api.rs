//! XLA's foreign function interface, version 0.1: its structs, as far as the handlers need them.
//!
//! They are those of `xla/ffi/api/c_api.h`. Each begins with its size, which newer versions may only
//! increase: a smaller struct is refused, and unknown fields at the end are ignored. When XLA asks, a
//! handler reports the version that it was made for; XLA serves old versions.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use crate::error::Failure;

pub(super) const F16: c_int = 10;
pub(super) const F32: c_int = 11;
pub(super) const BF16: c_int = 16;
const S32: c_int = 4;

const BUFFER: c_int = 1;
const SCALAR: c_int = 3;
const METADATA: c_int = 1;
const EXECUTE: c_int = 3;
const VERSION: [c_int; 2] = [0, 1];

/// Codes of errors.
const INVALID_ARGUMENT: c_int = 3;
const UNAVAILABLE: c_int = 14;

/// XLA's error, which it owns.
#[repr(C)]
pub(super) struct Error {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Future {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: c_int,
    next: *mut Extension,
}

#[repr(C)]
struct Version {
    struct_size: usize,
    extension: *mut Extension,
    major: c_int,
    minor: c_int,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: Version,
    traits: u32,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

/// Arguments or results.
#[repr(C)]
struct Values {
    struct_size: usize,
    extension: *mut Extension,
    count: i64,
    kinds: *const c_int,
    values: *const *const XlaBuffer,
}

#[repr(C)]
struct XlaBuffer {
    struct_size: usize,
    extension: *mut Extension,
    dtype: c_int,
    data: *mut c_void,
    ndim: i64,
    sizes: *const i64,
}

#[repr(C)]
struct Attributes {
    struct_size: usize,
    extension: *mut Extension,
    count: i64,
    kinds: *const c_int,
    names: *const *const Span,
    values: *const *const Scalar,
}

#[repr(C)]
struct Span {
    start: *const u8,
    length: usize,
}

#[repr(C)]
struct Scalar {
    dtype: c_int,
    value: *const i32,
}

/// Argument of a handler's call.
#[repr(C)]
pub(super) struct CallFrame {
    struct_size: usize,
    extension: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: c_int,
    arguments: Values,
    results: Values,
    attributes: Attributes,
    /// Not counted in `struct_size`; it exists if the API has futures.
    future: *mut Future,
}

#[repr(C)]
struct ErrorCreate {
    struct_size: usize,
    extension: *mut Extension,
    message: *const c_char,
    code: c_int,
}

#[repr(C)]
struct FutureCreate {
    struct_size: usize,
    extension: *mut Extension,
    future: *mut Future,
}

#[repr(C)]
struct FutureSetError {
    struct_size: usize,
    extension: *mut Extension,
    future: *mut Future,
    error: *mut Error,
}

#[repr(C)]
struct ErrorDestroy {
    struct_size: usize,
    extension: *mut Extension,
    error: *mut Error,
}

#[repr(C)]
struct StreamGet {
    struct_size: usize,
    extension: *mut Extension,
    context: *mut c_void,
    stream: *mut c_void,
}

type Unused = *const c_void;

#[repr(C)]
struct Api {
    struct_size: usize,
    extension: *mut Extension,
    version: Version,
    internal: Unused,
    error_create: unsafe extern "C" fn(*mut ErrorCreate) -> *mut Error,
    error_message: Unused,
    error_destroy: unsafe extern "C" fn(*mut ErrorDestroy),
    register: Unused,
    stream_get: unsafe extern "C" fn(*mut StreamGet) -> *mut Error,
    unused: [Unused; 8],
    /// This field and the following ones exist from version 0.1 on.
    future_create: unsafe extern "C" fn(*mut FutureCreate) -> *mut Error,
    future_set_available: unsafe extern "C" fn(*mut FutureCreate) -> *mut Error,
    future_set_error: unsafe extern "C" fn(*mut FutureSetError) -> *mut Error,
}

/// One argument or result, in host memory or in that of a device.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    pub(super) address: usize,
    pub(super) elements: usize,
    pub(super) dtype: c_int,
}

/// A call of a handler.
pub(super) struct Call<'a> {
    frame: &'a mut CallFrame,
    api: &'a Api,
}

/// Lets `handler` answer a call; answers a question about the handler's version itself.
///
/// # Safety
/// `frame` is the argument with which XLA calls a handler.
pub(super) unsafe fn answer(
    frame: *mut CallFrame,
    handler: impl FnOnce(&mut Call<'_>) -> Result<(), Failure>,
) -> *mut Error {
    // SAFETY: as promised by the caller; a field is read where the sizes say that it is there.
    unsafe {
        if (*frame).struct_size >= offset_of!(CallFrame, api) && told_version((*frame).extension) {
            return ptr::null_mut();
        }
        let api = &*(*frame).api;
        let result = Call::new(&mut *frame, api).and_then(|mut call| match call.frame.stage {
            EXECUTE => handler(&mut call),
            _ => Ok(()),
        });
        result.err().map_or(ptr::null_mut(), |failure| error(api, &failure))
    }
}

/// Answers the question for metadata, if the extensions of a call contain it.
///
/// # Safety
/// `extension` is a list of extensions from XLA.
unsafe fn told_version(mut extension: *mut Extension) -> bool {
    // SAFETY: as promised by the caller; `kind` says which struct it is.
    unsafe {
        while !extension.is_null() {
            if (*extension).kind == METADATA {
                let metadata = &mut *(*extension.cast::<MetadataExtension>()).metadata;
                [metadata.version.major, metadata.version.minor] = VERSION;
                metadata.traits = 0;
                return true;
            }
            extension = (*extension).next;
        }
    }
    false
}

/// Makes an XLA error.
fn error(api: &Api, failure: &Failure) -> *mut Error {
    let code = match failure {
        Failure::Invalid(_) | Failure::NoRank(_) => INVALID_ARGUMENT,
        Failure::Peer(_) => UNAVAILABLE,
    };
    let message = CString::new(failure.to_string().replace('\0', " ")).expect("no zero is left");
    let mut arguments = ErrorCreate {
        struct_size: size_of::<ErrorCreate>(),
        extension: ptr::null_mut(),
        message: message.as_ptr(),
        code,
    };
    // SAFETY: XLA copies the message.
    unsafe { (api.error_create)(&mut arguments) }
}

impl<'a> Call<'a> {
    /// Returns a call whose structs have all fields that are read here.
    fn new(frame: &'a mut CallFrame, api: &'a Api) -> Result<Call<'a>, Failure> {
        // Alignment may enlarge what Rust counts, never what XLA does.
        expect_size("call frame", frame.struct_size, offset_of!(CallFrame, future))?;
        expect_version(api)?;
        for values in [&frame.arguments, &frame.results] {
            expect_size("arguments", values.struct_size, size_of::<Values>())?;
        }
        expect_size("attributes", frame.attributes.struct_size, size_of::<Attributes>())?;
        Ok(Call { frame, api })
    }

    pub(super) fn arguments(&self) -> Result<Vec<Buffer>, Failure> {
        buffers(&self.frame.arguments)
    }

    pub(super) fn results(&self) -> Result<Vec<Buffer>, Failure> {
        buffers(&self.frame.results)
    }

    /// Returns an attribute, which must be an int32.
    pub(super) fn attribute(&self, name: &str) -> Result<i32, Failure> {
        let attributes = &self.frame.attributes;
        for at in 0..attributes.count.max(0) as usize {
            // SAFETY: XLA gives `count` kinds, names and values; the kind says what a value is.
            unsafe {
                let span = &**attributes.names.add(at);
                if std::slice::from_raw_parts(span.start, span.length) != name.as_bytes() {
                    continue;
                }
                if *attributes.kinds.add(at) == SCALAR {
                    let scalar = &**attributes.values.add(at);
                    if scalar.dtype == S32 {
                        return Ok(scalar.value.read_unaligned());
                    }
                }
            }
        }
        Err(Failure::invalid(format!("the call has no attribute '{name}' of int32")))
    }

    /// Returns the stream of a device on which XLA has queued the computation of the arguments, and will queue the
    /// readers of the results.
    pub(super) fn stream(&self) -> Result<*mut c_void, Failure> {
        let mut arguments = StreamGet {
            struct_size: size_of::<StreamGet>(),
            extension: ptr::null_mut(),
            context: self.frame.context,
            stream: ptr::null_mut(),
        };
        // SAFETY: as XLA's own header calls it.
        let error = unsafe { (self.api.stream_get)(&mut arguments) };
        // The stream that null means to CUDA is none that XLA uses.
        if self.has_failed(error) || arguments.stream.is_null() {
            return Err(Failure::invalid("XLA has given no stream, expected that of a GPU"));
        }
        Ok(arguments.stream)
    }

    /// Returns whether a function of XLA has failed, and destroys its error.
    fn has_failed(&self, error: *mut Error) -> bool {
        if error.is_null() {
            return false;
        }
        let struct_size = size_of::<ErrorDestroy>();
        let mut arguments = ErrorDestroy { struct_size, extension: ptr::null_mut(), error };
        // SAFETY: as XLA's own header does it, once.
        unsafe { (self.api.error_destroy)(&mut arguments) };
        true
    }

    /// Returns a future of this call for XLA, which keeps arguments and results until it is completed.
    pub(super) fn promise(&mut self) -> Result<Promise, Failure> {
        let mut arguments = FutureCreate {
            // As XLA counts it, which ends before the field that it fills in.
            struct_size: offset_of!(FutureCreate, future),
            extension: ptr::null_mut(),
            future: ptr::null_mut(),
        };
        // SAFETY: as XLA's own header calls it.
        let error = unsafe { (self.api.future_create)(&mut arguments) };
        if self.has_failed(error) || arguments.future.is_null() {
            return Err(Failure::invalid("XLA has made no future"));
        }
        self.frame.future = arguments.future;
        Ok(Promise { api: ptr::from_ref(self.api), future: Some(arguments.future) })
    }
}

/// XLA's future of a call, to be completed once, from any thread. If it is dropped, it fails: the work
/// that XLA waits for was lost in a panic.
pub(super) struct Promise {
    api: *const Api,
    /// `None` once it is completed.
    future: Option<*mut Future>,
}

// SAFETY: XLA's API lives as long as the process, and a future may be completed from any thread.
unsafe impl Send for Promise {}

impl Promise {
    pub(super) fn complete(mut self, result: Result<(), Failure>) {
        self.set(result);
    }

    fn set(&mut self, result: Result<(), Failure>) {
        let Some(future) = self.future.take() else { return };
        // SAFETY: as XLA's own header does it, once.
        unsafe {
            let (api, extension) = (&*self.api, ptr::null_mut());
            // An error of these calls would say that the future is not one: there is nobody to tell.
            let _ = match result {
                Ok(()) => {
                    let struct_size = size_of::<FutureCreate>();
                    let mut arguments = FutureCreate { struct_size, extension, future };
                    (api.future_set_available)(&mut arguments)
                }
                Err(failure) => {
                    let (struct_size, error) = (size_of::<FutureSetError>(), error(api, &failure));
                    let mut arguments = FutureSetError { struct_size, extension, future, error };
                    (api.future_set_error)(&mut arguments)
                }
            };
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.set(Err(Failure::invalid("the exchange has ended with a panic")));
    }
}

fn buffers(values: &Values) -> Result<Vec<Buffer>, Failure> {
    let buffer = |at: usize| {
        // SAFETY: XLA gives `count` kinds and values; a buffer has `ndim` sizes, and memory for them.
        unsafe {
            let kind = *values.kinds.add(at);
            if kind != BUFFER {
                return Err(Failure::invalid(format!(
                    "an argument of kind {kind}, expected arrays"
                )));
            }
            let found = &**values.values.add(at);
            expect_size("array", found.struct_size, size_of::<XlaBuffer>())?;
            let ndim = found.ndim.max(0) as usize;
            let sizes = match ndim {
                0 => &[],
                _ => std::slice::from_raw_parts(found.sizes, ndim),
            };
            let elements = sizes.iter().map(|&size| size.max(0) as usize).product();
            Ok(Buffer { address: found.data as usize, elements, dtype: found.dtype })
        }
    };
    (0..values.count.max(0) as usize).map(buffer).collect()
}

/// Refuses an API without futures. Version 0.1 has them, but reports a size without them.
fn expect_version(api: &Api) -> Result<(), Failure> {
    let counted = offset_of!(Api, error_create) + 5 * size_of::<Unused>();
    expect_size("API", api.struct_size, counted)?;
    let [major, minor] = [api.version.major, api.version.minor];
    if major == VERSION[0] && minor >= VERSION[1] {
        return Ok(());
    }
    Err(Failure::invalid(format!("XLA's API has version {major}.{minor}, expected 0.1 or more")))
}

fn expect_size(name: &str, found: usize, expected: usize) -> Result<(), Failure> {
    if found >= expected {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "XLA's {name} has {found} bytes, expected {expected} or more (hint: a newer jaxlib)"
    )))
}
