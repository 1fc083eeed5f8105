//! Codecs that change the number format of every element and nothing else.
//!
//! `none`, `f16` and `bf16` are the formats. Laws: `codec(x + y)` is `codec(x) + codec(y)` up to
//! rounding, and the residual that feedback keeps is exact.

use std::fmt;
use std::sync::Arc;

use thinwire_wire::DType;
use thinwire_wire::random::Key;

use crate::choice::{Entry, without_parameter};
use crate::kernel::{self, FormatLanes, imp};
use crate::{Bound, Codec, Error, Exchange, Finite, Input, Write};

/// No compression: f32 as they are, little-endian; decoding gives back the same bits.
pub(crate) const NONE: Entry = Entry {
    usage: "none",
    summary: "f32 as they are, 4 bytes per element",
    examples: &["none"],
    parse: |parameter| without_parameter("none", parameter, CastCodec(kernel::F32)),
};

/// IEEE 754 binary16, rounded to nearest, ties to even. A magnitude of 65520 or more becomes
/// infinite, and its step is skipped.
pub(crate) const F16: Entry = Entry {
    usage: "f16",
    summary: "IEEE half precision, 2 bytes per element",
    examples: &["f16"],
    parse: |parameter| without_parameter("f16", parameter, CastCodec(kernel::F16)),
};

/// The upper half of an f32, rounded to nearest, ties to even.
pub(crate) const BF16: Entry = Entry {
    usage: "bf16",
    summary: "the upper half of an f32, 2 bytes per element",
    examples: &["bf16"],
    parse: |parameter| without_parameter("bf16", parameter, CastCodec(kernel::BF16)),
};

/// Codec of one number format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CastCodec<F>(pub(crate) F);

/// Returns the codec that sends f32 values as they are.
pub fn raw() -> Arc<dyn Codec> {
    Arc::new(CastCodec(kernel::F32))
}

/// Returns the codec that sends every value as one element of `dtype`.
pub fn raw_of(dtype: DType) -> Arc<dyn Codec> {
    match dtype {
        DType::F32 => raw(),
        DType::F16 => Arc::new(CastCodec(kernel::F16)),
        DType::BF16 => Arc::new(CastCodec(kernel::BF16)),
    }
}

impl<F: FormatLanes> fmt::Display for CastCodec<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_raw() { "none" } else { F::DTYPE.name() })
    }
}

impl<F: FormatLanes> Codec for CastCodec<F> {
    fn exchange(&self) -> Exchange {
        Exchange::Summable
    }

    fn needs_feedback(&self) -> bool {
        false
    }

    fn bound(&self, _elements: usize) -> Bound {
        match F::DTYPE {
            DType::F32 => Bound::Contraction(1.0),
            // Small values become 0, however many there are.
            DType::F16 => Bound::None,
            DType::BF16 => Bound::Contraction(1.0 - 2.0f64.powi(-16)),
        }
    }

    fn dtype(&self) -> Option<DType> {
        Some(F::DTYPE)
    }

    fn encoded_len(&self, elements: usize) -> usize {
        elements * F::BYTES
    }

    fn encode(&self, input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        Finite::from(imp().cast_encode::<F>(input, output) < F::LIMIT)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        imp().cast_decode::<F>(encoded, write, values);
        Ok(())
    }
}
