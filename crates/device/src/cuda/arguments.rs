//! Arguments of kernels, one struct per family, as `kernels/*.cu` and `kernels/*.hpp` declare them.
//!
//! Lengths count elements. An address is one of the device's memory, or 0 for none.

use thinwire_codec::Write;
use thinwire_wire::random;

/// Address in the memory of a device.
pub type Address = u64;

/// Struct that a kernel takes by value.
///
/// # Safety
/// The struct has no padding, and has the layout of the struct with this name in `kernels/`.
pub unsafe trait Arguments: Copy {}

/// The part of a key of random numbers that is constant within a tensor.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Key {
    tensor: u32,
    step: u32,
    seed: [u32; 2],
}

impl From<random::Key> for Key {
    fn from(key: random::Key) -> Key {
        let ([_, _, tensor, step], seed) = key.philox_input(0);
        Key { tensor, step, seed }
    }
}

/// Whether a decoded value is added to the one that is there.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Add(u32);

impl From<Write> for Add {
    fn from(write: Write) -> Add {
        Add(u32::from(write == Write::Add))
    }
}

/// Arguments of casts: `encode_*`, `decode_*` and `pack_*` of `casts.cu`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Cast {
    /// Values, f32: read by encoding, written by decoding and packing.
    pub values: Address,
    /// Residual that encoding adds, if any.
    pub residual: Address,
    /// Address for the new residual, if any; may equal `values` or `residual`.
    pub error: Address,
    /// Elements in the other format, aligned for it.
    pub elements: Address,
    /// A u32 that encoding and packing raise to the bits of the largest magnitude.
    pub largest: Address,
    /// Number of elements.
    pub length: u64,
    /// Factor of packing.
    pub scale: f32,
    /// Effect of decoding.
    pub add: Add,
}

/// Arguments of codes: `encode_*` and `decode_*` of `ints.cu`, `signs.cu`, `levels.cu` and `float8.cu`, and of
/// codecs as text.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Code {
    /// Values, f32: read by encoding, written by decoding.
    pub values: Address,
    /// Residual that encoding adds, if any.
    pub residual: Address,
    /// Address for the new residual, if any; may equal `values` or `residual`.
    pub error: Address,
    /// Encoding; whole words are accessed if it is aligned to 4 bytes.
    pub bytes: Address,
    /// A u32 that is set to 1 by encoding if it cannot hold a block, and by decoding if a block is
    /// corrupt; otherwise it stays unchanged.
    pub infinite: Address,
    /// Number of elements.
    pub length: u64,
    /// Random numbers of encoding, which count from the first element.
    pub key: Key,
    /// Parameters after the colon in the name of the codec.
    pub parameters: Parameters,
    /// Effect of decoding.
    pub add: Add,
}

/// Parameters after the colon in the name of a codec.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Parameters {
    /// Threshold of `tbq`, or clip of `terngrad`.
    pub number: f32,
    /// Bits of a code of `qsgd`.
    pub bits: u32,
    /// Norm of `qsgd`: 0 the largest magnitude, 1 the length, 2 clipped.
    pub norm: u32,
}

/// Arguments of `powersgd.cu`. A matrix is `rows` x `columns`, row after row; `p` is `low_rank` vectors
/// of `rows` numbers, `q` of `columns` numbers.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Power {
    /// Matrix.
    pub values: Address,
    /// Residual that a projection adds to the matrix, which then holds the sum; 0 for no residual.
    pub residual: Address,
    /// Factor P: `low_rank` vectors with a number for each row.
    pub p: Address,
    /// Factor Q: `low_rank` vectors with a number for each column.
    pub q: Address,
    /// Room for [`PowerSgd::partial_len`](super::kernel::PowerSgd::partial_len) numbers.
    pub partial: Address,
    /// A u32 that is set to 1 if a product is not finite, and to 2 if there are more vectors than
    /// dimensions.
    pub infinite: Address,
    /// Number of rows.
    pub rows: u32,
    /// Number of columns.
    pub columns: u32,
    /// Number of vectors of a factor.
    pub low_rank: u32,
    /// Effect of the product of the factors on the matrix.
    pub add: Add,
    /// Sign of the product of the factors, 1 or -1.
    pub sign: f32,
    /// Length of the vectors at `p` that are made orthonormal.
    pub length: u32,
}

/// Arguments of `sparse.cu`, the same for all steps of encoding or decoding except `digit` and
/// `in_sample`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sparse {
    /// Values, f32: read by encoding, written by decoding.
    pub values: Address,
    /// Residual that encoding adds, if any.
    pub residual: Address,
    /// Address for the sums and then for the new residual, if any; may equal `values`.
    pub error: Address,
    /// Encoding.
    pub bytes: Address,
    /// A u32 that is set to 1 if a chosen element is not finite, and to 2 if indices are corrupt.
    pub infinite: Address,
    /// Room for [`Sparse::scratch_len`](super::kernel::Sparse::scratch_len) words.
    pub scratch: Address,
    /// Number of elements, below 2^32.
    pub length: u64,
    /// Number of chosen elements.
    pub count: u32,
    /// Number of the lower bits of an index, which are written as they are.
    pub low_bits: u32,
    /// Digit of the smallest chosen magnitude that this step finds; the magnitude is found digit by
    /// digit.
    pub digit: u32,
    /// Effect of decoding.
    pub add: Add,
    /// 1 if the smallest chosen magnitude is searched for in the sample.
    pub in_sample: u32,
    /// Number of samples, 0 for `topk`.
    pub samples: u32,
    /// Elements between two samples.
    pub stride: u32,
    /// Position of the threshold among the sorted samples, counted from 1.
    pub rank: u32,
    /// Choice among elements that reach the threshold: 0 for `topk`, 1 for `graddrop`, 2 for `dgc`.
    pub crowd: u32,
    /// Element from which on some elements are taken.
    pub start: u32,
}

/// Arguments of `rans.cu`, the same for all launches of encoding or decoding.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Rans {
    /// Values, f32: read by encoding, written by decoding.
    pub values: Address,
    /// Residual that encoding adds, if any.
    pub residual: Address,
    /// Address for the sums and then for the new residual, if any; may equal `values`.
    pub error: Address,
    /// Encoding.
    pub bytes: Address,
    /// A u32 that is set to 1 if a value is not finite, and to 2 if bytes are not a valid encoding.
    pub infinite: Address,
    /// Room for [`Rans::scratch_len`](super::entropy::Rans::scratch_len) words.
    pub scratch: Address,
    /// Number of elements.
    pub length: u64,
    /// Bytes of the longest encoding.
    pub room: u32,
    /// Planes of bytes of `lossless`; 0 is `ecsq`.
    pub planes: u32,
    /// Step of `ecsq`.
    pub step: f32,
    /// Effect of decoding.
    pub add: Add,
}

// SAFETY: 56 and 80 bytes without padding, field by field as in casts.cu and codes.hpp.
unsafe impl Arguments for Cast {}
// SAFETY: as above.
unsafe impl Arguments for Code {}
// SAFETY: 96 bytes without padding, field by field as in sparse.cu.
unsafe impl Arguments for Sparse {}
// SAFETY: 72 bytes without padding, field by field as in powersgd.cu.
unsafe impl Arguments for Power {}
// SAFETY: 72 bytes without padding, field by field as in rans.hpp.
unsafe impl Arguments for Rans {}
const _: () = assert!(size_of::<Cast>() == 56 && size_of::<Code>() == 80);
const _: () = assert!(size_of::<Power>() == 72 && size_of::<Sparse>() == 96);
const _: () = assert!(size_of::<Rans>() == 72);
