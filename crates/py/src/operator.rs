//! The operator that MindSpore loads from this library: all gradients in, all averages out.
//!
//! MindSpore's custom operators (`func_type="aot"`) are C functions of fixed shape. Its inputs here
//! are the gradients in the synchroniser's order and one int32 that says which synchroniser; its
//! outputs are the averages. The same file serves Python's import and MindSpore's `dlopen`, so both
//! see the same synchronisers.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, Weak};

use crate::error::Failure;
use crate::shared::{Shared, Source};
use thinwire_wire::DType;

/// The synchronisers of this process by key.
static SYNCHRONIZERS: Mutex<BTreeMap<i32, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// Makes a synchroniser known; its key.
pub(crate) fn remember(shared: &Arc<Shared>) -> i32 {
    let mut known = SYNCHRONIZERS.lock().expect("no holder panics");
    let key = known.last_key_value().map_or(1, |(last, _)| last + 1);
    known.insert(key, Arc::downgrade(shared));
    key
}

/// Forgets a synchroniser. Its key is not given again while a later one is known.
pub(crate) fn forget(key: i32) {
    SYNCHRONIZERS.lock().expect("no holder panics").remove(&key);
}

/// Averages gradients over all ranks. Returns 0, or 1 after a failure, which is on standard error and
/// in the synchroniser.
///
/// # Safety
/// As MindSpore calls it: `params`, `ndims`, `shapes` and `dtypes` have `nparam` entries, an odd
/// number: n gradients, the key, n averages; `shapes[i]` has `ndims[i]` entries; the tensors have
/// that many elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thinwire_exchange(
    nparam: c_int,
    params: *mut *mut c_void,
    ndims: *mut c_int,
    shapes: *mut *mut i64,
    dtypes: *const *const c_char,
    _stream: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    let count = nparam.max(0) as usize;
    // SAFETY: as promised by the caller.
    let tensors = unsafe {
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
        (0..count).map(tensor).collect::<Vec<_>>()
    };
    match exchange(&tensors) {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("thinwire: {failure}");
            1
        }
    }
}

/// One of the operator's tensors.
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
        Source { address: self.address, described: Some((self.elements, dtype)) }
    }
}

fn exchange(tensors: &[Tensor<'_>]) -> Result<(), Failure> {
    let found = tensors.len();
    let gradients = found / 2;
    let key = tensors.get(gradients).filter(|key| found % 2 == 1 && key.dtype == c"int32");
    let key = key.filter(|key| key.elements == 1 && key.address != 0).ok_or_else(|| {
        Failure::invalid(format!(
            "the operator has {found} tensors, expected gradients, one int32 and as many averages"
        ))
    })?;
    // SAFETY: MindSpore gives the address of a tensor of one int32.
    let key = unsafe { (key.address as *const i32).read_unaligned() };
    let known = SYNCHRONIZERS.lock().expect("no holder panics").get(&key).and_then(Weak::upgrade);
    let shared = known.ok_or_else(|| {
        Failure::invalid(format!("synchroniser {key} is closed or was never made"))
    })?;
    let sources: Vec<_> = tensors[..gradients].iter().map(Tensor::source).collect();
    let targets: Vec<_> = tensors[gradients + 1..].iter().map(|t| t.address).collect();
    let result = shared.exchange(&sources, &targets).map(|_| ());
    if let Err(failure) = &result {
        *shared.failure.lock().expect("no holder panics") = Some(failure.clone());
    }
    result
}
