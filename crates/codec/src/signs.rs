//! Codecs that write signs under one magnitude per block.
//!
//! `onebit` and `int2`. Both need feedback: a small element is sent as large as its block's mean
//! until the residual turns its sign.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::no_parameter;
use crate::kernel::{self, Kernels, SIGNS_BLOCK, Signer, Signs};
use crate::{Bound, Choice, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// A codec made of one kind of signs.
#[derive(Clone, Copy)]
pub(crate) struct SignCodec {
    name: &'static str,
    bits: usize,
    least: fn(usize) -> f64,
    encoded_len: fn(usize) -> usize,
    kernel: fn(&Kernels) -> &Signer,
}

impl SignCodec {
    /// The codec of `S`, whose loops `kernel` picks. Of a block of so many elements, `least` says
    /// which part of the squared length is surely sent.
    pub(crate) fn parse<S: Signs>(
        name: &'static str,
        parameter: Option<&str>,
        least: fn(usize) -> f64,
        kernel: fn(&Kernels) -> &Signer,
    ) -> Result<Choice, Error> {
        no_parameter(name, parameter)?;
        let encoded_len = S::encoded_len;
        Ok(Choice::bytes(SignCodec { name, bits: S::BITS, least, encoded_len, kernel }))
    }
}

impl fmt::Debug for SignCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignCodec({self})")
    }
}

impl fmt::Display for SignCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Codec for SignCodec {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        Bound::Contraction((self.least)(elements.min(SIGNS_BLOCK)))
    }

    /// With two bits, the mean of what was decoded is not the mean of what there was.
    fn claims(&self) -> Claims {
        Claims { idempotent: self.bits == 1, exact: false, ..Claims::ALL }
    }

    fn block(&self) -> usize {
        SIGNS_BLOCK
    }

    fn encoded_len(&self, elements: usize) -> usize {
        (self.encoded_len)(elements)
    }

    fn encode(&self, input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        ((self.kernel)(kernel::imp()).encode)(input, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        ((self.kernel)(kernel::imp()).decode)(encoded, write, values);
        Ok(())
    }
}
