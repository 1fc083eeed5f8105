//! What every codec can do.

use std::fmt::{Debug, Display};

use thinwire_wire::random::Key;
use thinwire_wire::{DType, Exchange};

use crate::Error;

/// How far a decoded encoding may lie from what was encoded, in terms of `‖x‖²`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// `‖decode(encode(x)) − x‖² ≤ (1 − δ) ‖x‖²` for every `x`, with this `δ` in `0.0..=1.0`. With
    /// feedback and `δ > 0`, what is lost stays bounded and is sent in the end.
    Contraction(f64),
    /// `E ‖decode(encode(x)) − x‖² ≤ (1 − δ) ‖x‖²` over random numbers, with this `δ`; and never more
    /// than `‖x‖²`.
    Mean(f64),
    /// Right in the mean over random numbers, and `E ‖decode(encode(x)) − x‖² ≤ ω ‖x‖²` with this
    /// `ω`.
    Variance(f64),
    /// No such number holds for every `x`.
    None,
}

/// What holds for a codec beside its [`Bound`], and what tests ask of it for that reason. All of it
/// holds by default: a codec says what it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Encoding what was decoded gives the same bytes.
    pub idempotent: bool,
    /// What is decoded and what is left add up to what there was, bit for bit. Where this is given
    /// up, they do to the last digit of the larger one.
    pub exact: bool,
    /// Every element becomes the nearest of the values that its block can hold.
    pub nearest: bool,
    /// A range that begins at a block is encoded as if it stood alone.
    pub separable: bool,
    /// Zeros are decoded to zeros.
    pub zero: bool,
}

impl Claims {
    /// Everything.
    pub const ALL: Claims =
        Claims { idempotent: true, exact: true, nearest: true, separable: true, zero: true };
    /// What is left where random numbers decide.
    pub const RANDOM: Claims =
        Claims { idempotent: false, exact: false, nearest: false, separable: false, ..Claims::ALL };
}

/// What is encoded.
#[derive(Debug)]
pub enum Input<'a> {
    /// The values alone; what the codec loses is lost.
    Plain(&'a [f32]),
    /// `values + residual`; what the codec loses is left in `values` as the new residual.
    Feedback {
        /// In: this step's values. Out: the new residual.
        values: &'a mut [f32],
        /// What the codec lost in earlier steps, as long as `values`; left as it is.
        residual: &'a [f32],
    },
}

impl Input<'_> {
    /// The number of elements.
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
}

impl Input<'_> {
    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> Input<'_> {
        match self {
            Input::Plain(values) => Input::Plain(values),
            Input::Feedback { values, residual } => Input::Feedback { values, residual },
        }
    }

    /// The values as they are now.
    pub fn values(&self) -> &[f32] {
        match self {
            Input::Plain(values) => values,
            Input::Feedback { values, .. } => values,
        }
    }
}

/// Whether everything that was encoded will decode to finite numbers.
///
/// `No` means that an input was NaN or infinite, or too large for the encoding. The encoding is
/// then harmless but worthless, and so is the new residual: the step must be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Finite {
    /// Every decoded value is finite.
    Yes,
    /// Some are not.
    No,
}

impl Finite {
    /// `Yes` if `condition` holds.
    pub fn when(condition: bool) -> Finite {
        if condition { Finite::Yes } else { Finite::No }
    }

    /// `Yes` if both are.
    pub fn and(self, other: Finite) -> Finite {
        Finite::when(self == Finite::Yes && other == Finite::Yes)
    }
}

/// What decoding does to the values that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Overwrite them.
    Set,
    /// Add to them.
    Add,
}

/// A way to write f32 values as bytes; `Display` gives the name that [`crate::Choice::parse`] reads.
pub trait Codec: Debug + Display + Send + Sync {
    /// How encodings of several ranks may be brought together.
    fn exchange(&self) -> Exchange;

    /// Whether training needs the residual of [`Input::Feedback`] to converge.
    fn needs_feedback(&self) -> bool;

    /// How far one encoding of `elements` values may be off, up to the rounding of f32.
    fn bound(&self, elements: usize) -> Bound;

    /// What else holds.
    fn claims(&self) -> Claims {
        Claims::ALL
    }

    /// Whether all ranks must be given the same random numbers, since what they encode is only then
    /// about the same elements.
    fn shares_randomness(&self) -> bool {
        false
    }

    /// Makes of values what encoding would make of them, where a rank does not encode them: its own
    /// before it adds the encodings of others, and a sum that is not encoded again. Most codecs leave
    /// them as they are, which is nearer to the truth. What is not finite must stay so.
    fn canonicalise(&self, _values: &mut [f32]) {}

    /// The type of the encoded elements, where the encoding is nothing but elements in their order.
    fn dtype(&self) -> Option<DType> {
        None
    }

    /// Whether the encoding is the values themselves, so that nobody needs to copy them.
    fn is_raw(&self) -> bool {
        self.dtype() == Some(DType::F32)
    }

    /// Ranges begin at multiples of this many elements, so that blocks are not cut.
    fn block(&self) -> usize {
        1
    }

    /// The exact length in bytes of the encoding of `elements` values.
    fn encoded_len(&self, elements: usize) -> usize;

    /// Bytes of an encoding that only fill up what codes of a few bits lie in.
    fn padding(&self, _elements: usize) -> usize {
        0
    }

    /// Encodes into the whole of `output`. Random numbers are those of `key`, counted from the
    /// first element of the input.
    ///
    /// # Panics
    /// If `output` is not [`Codec::encoded_len`] bytes, or values and residual differ in length.
    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite;

    /// Decodes into all of `values`, or adds to them. Any bytes may come in.
    ///
    /// # Errors
    /// If `encoded` has another length than `values` ask for, or names elements that do not exist;
    /// `values` may then have been changed in part.
    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error>;
}
