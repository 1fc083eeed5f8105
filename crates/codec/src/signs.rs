//! Codecs that write signs under one magnitude per block.
//!
//! `onebit` and `int2`. Both need feedback: a small element is sent as large as the mean of its
//! block until the residual turns its sign.

use std::fmt;
use std::marker::PhantomData;

use thinwire_wire::random::Key;

use crate::kernel::{SIGNS_BLOCK, Signs, imp};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// Codec of one kind of signs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignCodec<S> {
    contraction: fn(usize) -> f64,
    signs: PhantomData<S>,
}

impl<S: Signs> SignCodec<S> {
    /// Returns the codec of `S`, where `contraction` gives the part of the squared length that is
    /// surely sent of a block of so many elements.
    pub(crate) fn new(contraction: fn(usize) -> f64) -> SignCodec<S> {
        SignCodec { contraction, signs: PhantomData }
    }
}

impl<S: Signs> fmt::Display for SignCodec<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(S::NAME)
    }
}

impl<S: Signs> Codec for SignCodec<S> {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        Bound::Contraction((self.contraction)(elements.min(SIGNS_BLOCK)))
    }

    fn claims(&self) -> Claims {
        // With two bits, the mean of decoded magnitudes is not the mean of the encoded ones.
        Claims { idempotent: S::BITS == 1, exact: false, ..Claims::ALL }
    }

    fn block(&self) -> usize {
        SIGNS_BLOCK
    }

    fn encoded_len(&self, elements: usize) -> usize {
        S::encoded_len(elements)
    }

    fn encode(&self, input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        imp().sign_encode::<S>(input, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        imp().sign_decode::<S>(encoded, write, values);
        Ok(())
    }
}
