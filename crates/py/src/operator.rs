//! The operators that MindSpore loads from this library: one takes a bucket's gradients, the other
//! returns all averages.
//!
//! MindSpore's custom operators (`func_type="aot"`) are C functions with a fixed signature.
//! `thinwire_ready` takes the gradients of one bucket and returns a token at once, so that the
//! bucket travels during backward; `thinwire_finish` takes the tokens of all buckets and returns
//! the averages. The last input of both is a key: two int32, the synchroniser and the bucket.
//! Python's import and MindSpore's `dlopen` load one file, so both see the same synchronisers.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::background::Background;
use crate::error::Failure;
use crate::registry::{self, known};
use crate::shared::Source;
use thinwire_wire::DType;

/// Starts the exchange of a bucket's gradients. Returns 0, or 1 after a failure, which is printed
/// on standard error and kept in the synchroniser.
///
/// # Safety
/// As MindSpore calls it: `params`, `ndims`, `shapes` and `dtypes` have `nparam` entries: n gradients,
/// the key, the token; `shapes[i]` has `ndims[i]` entries; the tensors have that many elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thinwire_ready(
    nparam: c_int,
    params: *mut *mut c_void,
    ndims: *mut c_int,
    shapes: *mut *mut i64,
    dtypes: *const *const c_char,
    _stream: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    // SAFETY: as promised by the caller.
    let tensors = unsafe { tensors(nparam, params, ndims, shapes, dtypes) };
    status(ready(&tensors))
}

/// Waits for all averages. Returns as [`thinwire_ready`] does.
///
/// # Safety
/// As for [`thinwire_ready`], with a token of each bucket, the key, and the averages in the
/// parameters' order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thinwire_finish(
    nparam: c_int,
    params: *mut *mut c_void,
    ndims: *mut c_int,
    shapes: *mut *mut i64,
    dtypes: *const *const c_char,
    _stream: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    // SAFETY: as promised by the caller.
    let tensors = unsafe { tensors(nparam, params, ndims, shapes, dtypes) };
    status(finish(&tensors))
}

/// One of the tensors of an operator.
struct Tensor<'a> {
    address: usize,
    elements: usize,
    dtype: &'a CStr,
}

impl Tensor<'_> {
    fn source(&self) -> Source {
        let dtype = match self.dtype.to_bytes() {
            b"float32" => Some(DType::F32),
            b"float16" => Some(DType::F16),
            b"bfloat16" => Some(DType::BF16),
            _ => None,
        };
        let described = Some((self.elements, dtype));
        Source { address: self.address, described, device: None }
    }

    /// Returns the synchroniser's key and the bucket, if this tensor holds them.
    fn key(&self) -> Option<(i32, usize)> {
        if self.dtype != c"int32" || self.elements != 2 || self.address == 0 {
            return None;
        }
        // SAFETY: MindSpore gives the address of a tensor of two int32.
        let [key, bucket] = unsafe { (self.address as *const [i32; 2]).read_unaligned() };
        Some((key, usize::try_from(bucket).ok()?))
    }
}

/// Returns the tensors of an operator.
///
/// # Safety
/// As for the operators.
unsafe fn tensors<'a>(
    nparam: c_int,
    params: *mut *mut c_void,
    ndims: *mut c_int,
    shapes: *mut *mut i64,
    dtypes: *const *const c_char,
) -> Vec<Tensor<'a>> {
    // SAFETY: as promised by the caller.
    unsafe {
        let shape = |index: usize| {
            std::slice::from_raw_parts(*shapes.add(index), (*ndims.add(index)).max(0) as usize)
        };
        let tensor = |index: usize| Tensor {
            address: *params.add(index) as usize,
            elements: match *ndims.add(index) {
                0 => 1,
                _ => shape(index).iter().map(|&size| size.max(0) as usize).product(),
            },
            dtype: CStr::from_ptr(*dtypes.add(index)),
        };
        (0..nparam.max(0) as usize).map(tensor).collect()
    }
}

fn status(result: Result<(), Failure>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            // The thread that has called the operator may have the GIL, and others wait for it.
            Background::start().log(failure.to_string());
            1
        }
    }
}

fn ready(tensors: &[Tensor<'_>]) -> Result<(), Failure> {
    let (gradients, (key, bucket), _) = parts(tensors)?;
    let sources: Vec<_> = gradients.iter().map(Tensor::source).collect();
    registry::ready(&known(key)?.shared, bucket, &sources)
}

fn finish(tensors: &[Tensor<'_>]) -> Result<(), Failure> {
    let (_, (key, _), averages) = parts(tensors)?;
    let targets: Vec<_> = averages.iter().map(Tensor::source).collect();
    registry::finish(&known(key)?.shared, &targets)
}

type Parts<'a> = (&'a [Tensor<'a>], (i32, usize), &'a [Tensor<'a>]);

/// Returns the inputs before the key, the key, and the outputs after it.
fn parts<'a>(tensors: &'a [Tensor<'a>]) -> Result<Parts<'a>, Failure> {
    let found = tensors.iter().enumerate().find_map(|(at, each)| Some((at, each.key()?)));
    let (at, key) = found.ok_or_else(|| {
        let count = tensors.len();
        Failure::invalid(format!("none of the operator's {count} tensors is a key of two int32"))
    })?;
    Ok((&tensors[..at], key, &tensors[at + 1..]))
}
