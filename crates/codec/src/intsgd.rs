//! Integers under a scale that all ranks share.
//!
//! Mishchenko et al., "IntSGD: Adaptive floatless compression of stochastic gradients" (2022, algorithm
//! 1): every rank rounds its values at random to multiples of one unit. All ranks compute the unit from
//! the averages of past steps, so it is never sent. Sums of such integers are integers, and the integers
//! are limited so that no sum overflows. Partial sums are therefore encoded again at every hop without
//! loss.
//!
//! ```text
//! scale² = 9/10 scale² + 1/10 mean square of the average   follow
//! unit = sqrt(2 / ranks) scale, with 16 bits a sixteenth   unit
//! values = integers, in the mean values / unit             round    all-reduce the integers
//! ```
//!
//! Values are a rank's share of the average, as `sync` packs them: gradients over the number of
//! ranks.
//!
//! Laws: rounding is unbiased where nothing is clipped; a sum over ranks has the same bits in any order;
//! integers that would not fit are refused, never wrapped around.

use std::fmt;
use std::sync::Arc;

use thinwire_wire::random::Key;

use crate::coded::Coded;
use crate::kernel::bits::{round, signed};
use crate::kernel::codes::Code;
use crate::kernel::{self, GROUP, RANDOM_BITS, Scale, Work, imp};
use crate::{Bound, Codec, Error, Exchange, Finite};

/// Compressor to integers of 8 or 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntSgd {
    bits: usize,
}

/// Weight of the old mean square in the new one.
const KEPT: f64 = 0.9;

/// Reads the parameter in a name.
pub(crate) fn parse(parameter: Option<&str>) -> Result<IntSgd, Error> {
    match parameter {
        None | Some("8") => Ok(IntSgd { bits: 8 }),
        Some("16") => Ok(IntSgd { bits: 16 }),
        _ => Err(Error::parameter("intsgd bits", parameter, "8 or 16")),
    }
}

impl fmt::Display for IntSgd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.bits == 8 { "intsgd" } else { "intsgd:16" })
    }
}

impl IntSgd {
    /// Returns the codec that sends the integers; it is exact for values that are integers.
    pub fn integers(&self) -> Arc<dyn Codec> {
        Arc::new(Coded(*self))
    }

    /// Returns the largest magnitude that one rank's integers may have so that no sum over `ranks` ranks
    /// overflows; `None` if there are so many ranks that even magnitude 1 could overflow.
    pub fn limit(&self, ranks: usize) -> Option<usize> {
        Some(self.ranks_max() / ranks.max(1)).filter(|limit| *limit > 0)
    }

    /// Returns the largest number of ranks whose integers can be summed. It equals the largest sum that
    /// the integers can hold.
    pub fn ranks_max(&self) -> usize {
        (1 << (self.bits - 1)) - 1
    }

    /// Returns the value that the integer 1 represents. Integers of 16 bits have eight additional bits:
    /// half of them make the unit finer, the other half leave room for larger values.
    pub fn unit(&self, scale: f32, ranks: usize) -> f32 {
        let finer = f64::from(1_u32 << ((self.bits - 8) / 2));
        ((2.0 / ranks as f64).sqrt() / finer * f64::from(scale)) as f32
    }

    /// Replaces values by integers of magnitude at most `limit`, rounded at random so that their expected
    /// value is `values / unit`. Returns whether all values were finite.
    pub fn round(&self, values: &mut [f32], unit: f32, limit: usize, key: Key) -> Finite {
        let finite = Finite::from(kernel::is_finite(values));
        if finite == Finite::Yes {
            imp().run(Round { values, inverse: 1.0 / unit, limit: limit as f32, key });
        }
        finite
    }

    /// Returns the scale after a step with these averages. `scale` is the scale before the step, or 0 if
    /// there was none.
    pub fn follow(scale: f32, averages: &[f32]) -> f32 {
        let (old, new) = (f64::from(scale).powi(2), mean_square(averages));
        let square = if scale == 0.0 { new } else { KEPT * old + (1.0 - KEPT) * new };
        square.sqrt() as f32
    }
}

struct Round<'a> {
    values: &'a mut [f32],
    inverse: f32,
    limit: f32,
    key: Key,
}

impl Work for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let digit = 1.0 / (1 << RANDOM_BITS) as f32;
        for (group, values) in self.values.chunks_mut(GROUP).enumerate() {
            let random = imp().random(self.key, group as u64);
            for (x, random) in values.iter_mut().zip(random.0) {
                let scaled = (*x * self.inverse).clamp(-self.limit, self.limit);
                let below = scaled.floor();
                let up = scaled - below > (random as f32 + 0.5) * digit;
                *x = below + if up { 1.0 } else { 0.0 };
            }
        }
    }
}

/// Returns the mean square; 0 of no values.
fn mean_square(values: &[f32]) -> f64 {
    kernel::squares(values) / values.len().max(1) as f64
}

impl Code for IntSgd {
    fn name(&self) -> String {
        self.to_string()
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        self.bits
    }

    #[inline(always)]
    fn scale(&self, _values: &[f32], max: u32) -> Option<Scale> {
        (max <= (self.ranks_max() as f32).to_bits()).then_some(Scale::NONE)
    }

    #[inline(always)]
    fn code(&self, x: f32, _scale: Scale, _random: u32) -> u32 {
        round(x) as u32
    }

    #[inline(always)]
    fn value(&self, code: u32, _scale: f32) -> f32 {
        signed(code, self.bits)
    }

    fn exchange(&self) -> Exchange {
        Exchange::Summable
    }

    fn bound(&self, _elements: usize) -> Bound {
        // A value that is no integer may be off by one half, however small it is.
        Bound::None
    }
}
