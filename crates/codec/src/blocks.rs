//! Codecs that write small integers under one scale per block.
//!
//! `int8`, `int4` and `int3` are the integers. Rounded to the nearest they need feedback, since the
//! same error may come at every step. Rounded stochastically they are unbiased and need none: the
//! errors of ranks and steps are independent and average out.

use std::fmt;
use std::marker::PhantomData;

use thinwire_wire::random::Key;

use crate::choice::{Choice, refused};
use crate::kernel::{LevelsLanes, imp};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write};

/// Codec of one kind of levels.
#[derive(Clone, Copy, Debug)]
struct BlockCodec<Q> {
    rounding: Rounding,
    levels: PhantomData<Q>,
}

/// Code of a value that lies between two codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounding {
    /// The nearest code, of two equally near the even one.
    Nearest,
    /// Either code, so that the mean is the value.
    Stochastic,
}

/// Returns the codec of the levels `Q`, with the rounding that `parameter` names.
pub(crate) fn parse<Q: LevelsLanes>(parameter: Option<&str>) -> Result<Choice, Error> {
    let rounding = match parameter {
        None | Some("nearest") => Rounding::Nearest,
        Some("stochastic") => Rounding::Stochastic,
        _ => {
            let what = format!("{} rounding", Q::NAME);
            return Err(refused(&what, parameter, "'nearest' or 'stochastic'"));
        }
    };
    Ok(Choice::bytes(BlockCodec::<Q> { rounding, levels: PhantomData }))
}

impl<Q: LevelsLanes> fmt::Display for BlockCodec<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Q::NAME)?;
        match self.rounding {
            Rounding::Nearest => Ok(()),
            Rounding::Stochastic => f.write_str(":stochastic"),
        }
    }
}

impl<Q: LevelsLanes> Codec for BlockCodec<Q> {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        self.rounding == Rounding::Nearest
    }

    fn bound(&self, elements: usize) -> Bound {
        // At worst one element is the largest and all others lie half-way between two codes.
        let others = Q::BLOCK.min(elements).saturating_sub(1) as f64;
        let steps = f64::from(2 * Q::MAX).powi(2);
        match self.rounding {
            Rounding::Nearest => Bound::Contraction(steps / (steps + others)),
            // Rounding up with probability p has the variance p (1 - p), at most a quarter.
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
        Q::BLOCK
    }

    fn encoded_len(&self, elements: usize) -> usize {
        Q::encoded_len(elements)
    }

    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let key = (self.rounding == Rounding::Stochastic).then_some(key);
        imp().quantise::<Q>(input, key, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        imp().dequantise::<Q>(encoded, write, values);
        Ok(())
    }
}
