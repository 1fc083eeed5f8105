//! The trait of codecs, and the types of its arguments and promises.

use std::fmt::{Debug, Display};

use thinwire_wire::random::Key;
use thinwire_wire::{DType, Exchange};

use crate::Error;
use crate::language::Cuda;

/// Bound on the squared codec error, relative to `‖x‖²`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// `‖decode(encode(x)) − x‖² ≤ (1 − δ) ‖x‖²` for every `x`, with this `δ` in `0.0..=1.0`. With
    /// feedback and `δ > 0`, residuals stay bounded and are sent in the end.
    Contraction(f64),
    /// `E ‖decode(encode(x)) − x‖² ≤ (1 − δ) ‖x‖²` over random numbers, with this `δ`; the error never
    /// exceeds `‖x‖²`.
    Mean(f64),
    /// Decoded values are unbiased over random numbers, and `E ‖decode(encode(x)) − x‖² ≤ ω ‖x‖²`
    /// with this `ω`.
    Variance(f64),
    /// No bound holds for every `x`.
    None,
}

/// Properties that a codec has in addition to its [`Bound`]; tests check them. By default a codec claims
/// all of them; an implementation declares those that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Encoding decoded values gives the same bytes again.
    pub idempotent: bool,
    /// Decoded value and residual add up to the input, bit for bit. Without this property, the sum is
    /// right up to the last digit of the larger of the two.
    pub exact: bool,
    /// Every element is rounded to the nearest value that its block can hold.
    pub nearest: bool,
    /// A range that begins at a block is encoded like a tensor of its own.
    pub separable: bool,
    /// Zeros are decoded to zeros.
    pub zero: bool,
}

impl Claims {
    /// Claim of every property.
    pub const ALL: Claims =
        Claims { idempotent: true, exact: true, nearest: true, separable: true, zero: true };
    /// Claim of the properties that a codec with random rounding has.
    pub const RANDOM: Claims =
        Claims { idempotent: false, exact: false, nearest: false, separable: false, ..Claims::ALL };
}

/// Values to encode.
#[derive(Debug)]
pub enum Input<'a> {
    /// Values without residual: the codec error is lost.
    Plain(&'a [f32]),
    /// Sum `values + residual`: the codec error is left in `values` as the new residual.
    Feedback {
        /// Values of this step before, new residual after.
        values: &'a mut [f32],
        /// Residual of earlier steps, as long as `values`; not changed.
        residual: &'a [f32],
    },
}

impl Input<'_> {
    /// Returns the number of elements.
    ///
    /// # Panics
    /// If the values and the residual differ in length.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        match self {
            Input::Plain(values) => values.len(),
            Input::Feedback { values, residual } => {
                assert_eq!(values.len(), residual.len(), "values and residual");
                values.len()
            }
        }
    }

    /// Calls `visit` with every `length` elements, and with the index of the first of them.
    pub(crate) fn for_chunks(&mut self, length: usize, mut visit: impl FnMut(usize, Input<'_>)) {
        let firsts = (0..).step_by(length);
        match self {
            Input::Plain(values) => {
                let chunks = values.chunks(length).zip(firsts);
                chunks.for_each(|(values, first)| visit(first, Input::Plain(values)));
            }
            Input::Feedback { values, residual } => {
                let chunks = values.chunks_mut(length).zip(residual.chunks(length));
                for ((values, residual), first) in chunks.zip(firsts) {
                    visit(first, Input::Feedback { values, residual });
                }
            }
        }
    }

    /// Returns the values without the residual.
    pub fn values(&self) -> &[f32] {
        match self {
            Input::Plain(values) => values,
            Input::Feedback { values, .. } => values,
        }
    }
}

/// Whether everything that was encoded will decode to finite numbers.
///
/// `No` means that an input was NaN or infinite, or too large for the encoding. Encoding and new
/// residual are then harmless but worthless: the step must be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Finite {
    /// Every decoded value is finite.
    Yes,
    /// Some decoded values are not finite.
    No,
}

impl Finite {
    /// Returns `Yes` if both are.
    pub fn and(self, other: Finite) -> Finite {
        Finite::from(self == Finite::Yes && other == Finite::Yes)
    }
}

impl From<bool> for Finite {
    fn from(is_finite: bool) -> Finite {
        if is_finite { Finite::Yes } else { Finite::No }
    }
}

/// Effect of decoding on the values that are already in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Overwrites the values.
    Set,
    /// Adds to the values.
    Add,
}

/// Encoding of f32 values as bytes; `Display` gives the name that [`crate::Choice::parse`] reads.
pub trait Codec: Debug + Display + Send + Sync {
    /// Returns the way in which encodings of several ranks are brought together.
    fn exchange(&self) -> Exchange;

    /// Returns whether training needs the residual of [`Input::Feedback`] to converge.
    fn needs_feedback(&self) -> bool;

    /// Returns the bound of the codec error of `elements` values, up to the rounding of f32.
    fn bound(&self, elements: usize) -> Bound;

    /// Returns the properties that hold in addition to the bound.
    fn claims(&self) -> Claims {
        Claims::ALL
    }

    /// Returns whether all ranks must be given the same random numbers, so that all of them encode the
    /// same elements.
    fn shares_randomness(&self) -> bool {
        false
    }

    /// Replaces values by the result of encoding and then decoding them. It is called on values that a
    /// rank does not encode: on the rank's own values, before encodings of other ranks are added to them,
    /// and on a sum that is not encoded again. Most codecs leave the values as they are, which is more
    /// exact. Values that are not finite must stay not finite.
    fn canonicalise(&self, _values: &mut [f32]) {}

    /// Returns the type of the encoded elements, if the encoding consists of elements in order and
    /// nothing else.
    fn dtype(&self) -> Option<DType> {
        None
    }

    /// Returns whether the encoding is the bytes of the values themselves, so that no copy is needed.
    fn is_raw(&self) -> bool {
        self.dtype() == Some(DType::F32)
    }

    /// Returns the number of elements of a block; ranges begin at multiples of it.
    fn block(&self) -> usize {
        1
    }

    /// Returns the exact length in bytes of the encoding of `elements` values; for a codec [of variable
    /// length](Codec::is_variable), the largest length.
    fn encoded_len(&self, elements: usize) -> usize;

    /// Returns whether the length depends on the values. Such an encoding begins with its own length as
    /// a little-endian u32, which [`Codec::frame_len`] reads.
    fn is_variable(&self) -> bool {
        false
    }

    /// Returns the length of the encoding at the beginning of `bytes`; it is at most `bytes.len()`.
    fn frame_len(&self, bytes: &[u8]) -> usize {
        match bytes.first_chunk() {
            Some(length) if self.is_variable() => {
                (u32::from_le_bytes(*length) as usize).min(bytes.len())
            }
            _ => bytes.len(),
        }
    }

    /// Returns the length in bytes to expect of the encoding of `elements` values: the exact length, or
    /// for a codec of variable length, the length for normally distributed values.
    fn expected_len(&self, elements: usize) -> usize {
        self.encoded_len(elements)
    }

    /// Returns the codec as kernels in CUDA C, or the reason why it has none; `None` if the codec is not
    /// defined by a text.
    fn cuda(&self) -> Option<Result<Cuda, &str>> {
        None
    }

    /// Returns the number of padding bytes in an encoding: bytes without information, which complete
    /// groups of codes of a few bits.
    fn padding(&self, _elements: usize) -> usize {
        0
    }

    /// Encodes into `output`. Random numbers come from `key`, counted from the first element of the
    /// input. Bytes of `output` after the first [`Codec::frame_len`] bytes are undefined.
    ///
    /// # Panics
    /// If `output` is not [`Codec::encoded_len`] bytes, or values and residual differ in length.
    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite;

    /// Decodes `encoded` into all of `values`, or adds the decoded values to them. Any bytes are either
    /// decoded or refused.
    ///
    /// # Errors
    /// If `encoded` does not have the length of an encoding of `values`, or names elements that do not
    /// exist. Some of `values` may then have been changed.
    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error>;
}
