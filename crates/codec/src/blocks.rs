//! Codecs that write small integers under one scale per block.
//!
//! `int8`, `int4` and `int3` are the integers. To nearest they need feedback: the same error may come every
//! step. Rounded stochastically they are unbiased and need none: errors of ranks and steps are
//! independent and average out.

use std::fmt;

use thinwire_wire::random::Key;

use crate::kernel::{self, Kernels, Levels, Quantiser};
use crate::{Bound, Choice, Claims, Codec, Error, Exchange, Finite, Input, Kind, Write};

/// A codec made of one kind of levels.
#[derive(Clone, Copy)]
pub(crate) struct BlockCodec {
    name: &'static str,
    rounding: Rounding,
    block: usize,
    max: i32,
    encoded_len: fn(usize) -> usize,
    kernel: fn(&Kernels) -> &Quantiser,
}

/// Where a value between two codes goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    /// To the nearest, ties to the even one.
    Nearest,
    /// To either, so that the mean is the value.
    Stochastic,
}

impl BlockCodec {
    /// The codec of levels `Q`, whose loops `kernel` picks, with rounding as `parameter` says.
    pub(crate) fn parse<Q: Levels>(
        name: &'static str,
        parameter: Option<&str>,
        kernel: fn(&Kernels) -> &Quantiser,
    ) -> Result<Choice, Error> {
        let rounding = match parameter {
            None | Some("nearest") => Rounding::Nearest,
            Some("stochastic") => Rounding::Stochastic,
            Some(found) => {
                let context =
                    format!("{name} rounding '{found}', expected 'nearest' or 'stochastic'");
                return Err(Error::new(Kind::Parameter, context));
            }
        };
        let encoded_len = Q::encoded_len;
        Ok(Choice::bytes(BlockCodec {
            name,
            rounding,
            block: Q::BLOCK,
            max: Q::MAX,
            encoded_len,
            kernel,
        }))
    }
}

impl fmt::Debug for BlockCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockCodec({self})")
    }
}

impl fmt::Display for BlockCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.rounding {
            Rounding::Nearest => Ok(()),
            Rounding::Stochastic => f.write_str(":stochastic"),
        }
    }
}

impl Codec for BlockCodec {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        self.rounding == Rounding::Nearest
    }

    /// At worst one element is the largest and all others lie half-way between two codes, near 0 if
    /// rounding is to nearest. Random rounding by `p` has the variance `p (1 - p)`, at most a quarter.
    fn bound(&self, elements: usize) -> Bound {
        let others = self.block.min(elements).saturating_sub(1) as f64;
        let steps = f64::from(2 * self.max).powi(2);
        match self.rounding {
            Rounding::Nearest => Bound::Contraction(steps / (steps + others)),
            Rounding::Stochastic => Bound::Variance(others / steps),
        }
    }

    fn claims(&self) -> Claims {
        match self.rounding {
            Rounding::Nearest => Claims::ALL,
            Rounding::Stochastic => Claims::RANDOM,
        }
    }

    fn block(&self) -> usize {
        self.block
    }

    fn encoded_len(&self, elements: usize) -> usize {
        (self.encoded_len)(elements)
    }

    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let key = (self.rounding == Rounding::Stochastic).then_some(key);
        ((self.kernel)(kernel::imp()).encode)(input, key, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        ((self.kernel)(kernel::imp()).decode)(encoded, write, values);
        Ok(())
    }
}
