//! Codecs that write every element as a code of a fixed width.
//!
//! A [`Code`](crate::kernel::codes::Code) defines the meaning of a code in a few lines; blocks,
//! packing, residuals and random numbers are those of `kernel::codes`.

use std::fmt;

use thinwire_wire::random::Key;

use crate::kernel::codes::{block, block_len};
use crate::kernel::{CodeLanes, imp};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// Codec of a code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coded<C>(pub(crate) C);

impl<C: CodeLanes> fmt::Display for Coded<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name())
    }
}

impl<C: CodeLanes> Codec for Coded<C> {
    fn exchange(&self) -> Exchange {
        self.0.exchange()
    }

    fn needs_feedback(&self) -> bool {
        self.0.needs_feedback()
    }

    fn bound(&self, elements: usize) -> Bound {
        self.0.bound(elements.clamp(1, block::<C>()))
    }

    fn claims(&self) -> Claims {
        self.0.claims()
    }

    fn canonicalise(&self, values: &mut [f32]) {
        self.0.canonicalise(values);
    }

    fn block(&self) -> usize {
        block::<C>()
    }

    fn encoded_len(&self, elements: usize) -> usize {
        let (blocks, rest) = (elements / block::<C>(), elements % block::<C>());
        let rest = if rest == 0 { 0 } else { block_len(self.0, rest) };
        blocks * block_len(self.0, block::<C>()) + rest
    }

    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        imp().code_encode(self.0, input, key, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        imp().code_decode(self.0, encoded, write, values);
        Ok(())
    }
}
