//! Codecs that change every element's number format and nothing else.
//!
//! `none`, `f16` and `bf16` are the formats. Laws: `codec(x + y)` is `codec(x) + codec(y)` but
//! for rounding, and what feedback keeps is exact.

use std::fmt;

use thinwire_wire::DType;
use thinwire_wire::random::Key;

use crate::kernel::{self, Cast, Format, Kernels};
use crate::{Bound, Codec, Error, Exchange, Finite, Input, Write};

/// A codec made of one number format.
#[derive(Clone, Copy)]
pub(crate) struct CastCodec {
    dtype: DType,
    limit: u32,
    kernel: fn(&Kernels) -> &Cast,
}

impl CastCodec {
    /// The codec of format `F`, whose loops `kernel` picks.
    pub(crate) fn new<F: Format>(dtype: DType, kernel: fn(&Kernels) -> &Cast) -> CastCodec {
        CastCodec { dtype, limit: F::LIMIT, kernel }
    }
}

impl fmt::Debug for CastCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CastCodec({self})")
    }
}

impl fmt::Display for CastCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_raw() { "none" } else { self.dtype.name() })
    }
}

impl Codec for CastCodec {
    fn exchange(&self) -> Exchange {
        Exchange::Summable
    }

    fn needs_feedback(&self) -> bool {
        false
    }

    /// f16 has none: what is small becomes 0.
    fn bound(&self, _elements: usize) -> Bound {
        match self.dtype {
            DType::F32 => Bound::Contraction(1.0),
            DType::F16 => Bound::None,
            DType::BF16 => Bound::Contraction(1.0 - 2.0f64.powi(-16)),
        }
    }

    fn dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }

    fn encoded_len(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    fn encode(&self, input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let largest = ((self.kernel)(kernel::imp()).encode)(input, output);
        Finite::when(largest < self.limit)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        ((self.kernel)(kernel::imp()).decode)(encoded, write, values);
        Ok(())
    }
}
