//! Random rounding to evenly spaced levels.
//!
//! Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding" (2017,
//! section 3), with codes of a fixed width, so that the length is known beforehand. With `BITS` bits
//! there are `2^(BITS - 1) - 1` levels on either side of 0, up to the norm of the block. The norm is the
//! largest magnitude, which gives the smallest codec error, or with `:l2` the Euclidean length, as in the
//! paper.
//!
//! Law: unbiased, and a code is one of the two levels next to the value.

use crate::choice::{Choice, Entry};
use crate::coded::Coded;
use crate::kernel::bits::{INFINITY, round, signed};
use crate::kernel::codes::Code;
use crate::kernel::{RANDOM_BITS, Rounding, Scale};
use crate::shown::Number;
use crate::{Bound, Claims, Error};

/// Random rounding to levels of the largest magnitude, or of the length, of a block.
pub(crate) const QSGD: Entry = Entry {
    usage: "qsgd:BITS[:l2]",
    summary: "random rounding to levels of the block's largest or of its length",
    examples: &["qsgd:3", "qsgd:4", "qsgd:8", "qsgd:4:l2"],
    parse: parse_qsgd,
};

/// Three values, random: two bits per element.
///
/// Wen et al., "TernGrad: Ternary gradients to reduce communication in distributed deep learning"
/// (2017, section 3): a value becomes 0, or the largest magnitude of the block with its own sign, with
/// probabilities that make it unbiased. This is `qsgd` with one level. With `:CLIP`, magnitudes above
/// CLIP times the root mean square are clipped first (section 4, 2.5 in the paper); the clipped codec
/// is biased, so it needs feedback.
///
/// Law: the variance is `s ‖x‖₁ - ‖x‖₂²` with the largest magnitude `s`.
pub(crate) const TERNGRAD: Entry = Entry {
    usage: "terngrad[:CLIP]",
    summary: "random 0 or ± the largest magnitude, 36 bytes per 128 elements",
    examples: &["terngrad", "terngrad:2.5"],
    parse: parse_terngrad,
};

/// Value of the highest level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Norm {
    /// Largest magnitude of the block.
    Max,
    /// Euclidean length of the block.
    Length,
    /// Largest magnitude, clipped to a multiple of the root mean square of the block.
    Clipped(f32),
}

/// Levels up to a norm; with two bits they are the three values of `terngrad`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub(crate) bits: usize,
    pub(crate) norm: Norm,
}

fn parse_qsgd(parameter: Option<&str>) -> Result<Choice, Error> {
    let (bits, norm) = match parameter.and_then(|found| found.split_once(':')) {
        Some((bits, "l2")) => (Some(bits), Norm::Length),
        _ => (parameter, Norm::Max),
    };
    match bits.and_then(|found| found.parse().ok()) {
        Some(bits @ 3..=8) => Ok(Choice::bytes(Coded(Levels { bits, norm }))),
        _ => Err(Error::parameter("qsgd bits", parameter, "3..=8, or with ':l2'")),
    }
}

fn parse_terngrad(parameter: Option<&str>) -> Result<Choice, Error> {
    let norm = match parameter {
        None => Norm::Max,
        Some(found) => match found.parse() {
            Ok(clip) if (1.0..=1e6).contains(&clip) => Norm::Clipped(clip),
            _ => {
                return Err(Error::parameter("terngrad clip", parameter, "a number from 1 to 1e6"));
            }
        },
    };
    Ok(Choice::bytes(Coded(Levels { bits: 2, norm })))
}

impl Levels {
    /// Returns the largest code.
    #[inline(always)]
    pub(crate) fn levels(&self) -> i32 {
        (1 << (self.bits - 1)) - 1
    }
}

impl Code for Levels {
    const SCALED: bool = true;
    const RANDOM: bool = true;

    fn name(&self) -> String {
        match self.norm {
            Norm::Max if self.bits == 2 => "terngrad".to_owned(),
            Norm::Max => format!("qsgd:{}", self.bits),
            Norm::Length => format!("qsgd:{}:l2", self.bits),
            Norm::Clipped(clip) => format!("terngrad:{}", Number(clip)),
        }
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        self.bits
    }

    #[inline(always)]
    fn scale(&self, values: &[f32], max: u32) -> Option<Scale> {
        let norm = match self.norm {
            Norm::Max => max,
            Norm::Length => length(values, max),
            Norm::Clipped(clip) => {
                let mean = length(values, max);
                let mean = f32::from_bits(mean) / (values.len() as f32).sqrt();
                max.min((mean * clip).to_bits())
            }
        };
        Scale::of(norm, self.levels(), Rounding::Stochastic)
    }

    #[inline(always)]
    fn code(&self, x: f32, scale: Scale, random: u32) -> u32 {
        // A value is rounded up where its digits behind the point and random ones carry.
        let digits = x * (scale.inverse * (1 << RANDOM_BITS) as f32);
        let max = (self.levels() << RANDOM_BITS) as f32;
        let digits = if digits > max { max } else { digits };
        let rounded = round(if digits < -max { -max } else { digits });
        (((rounded + random as i32) >> RANDOM_BITS).min(self.levels())) as u32
    }

    #[inline(always)]
    fn value(&self, code: u32, scale: f32) -> f32 {
        signed(code, self.bits) * scale
    }

    fn needs_feedback(&self) -> bool {
        matches!(self.norm, Norm::Clipped(_))
    }

    fn bound(&self, elements: usize) -> Bound {
        // Rounding up or down by a step u has the variance p (1 - p) u²: at most u²/4, and at most u
        // times the magnitude.
        let (n, levels) = (elements as f64, f64::from(self.levels()));
        let quarter = |others: f64| others / (4.0 * levels * levels);
        match self.norm {
            Norm::Max if self.levels() == 1 => {
                Bound::Variance(((n.sqrt() - 1.0) / 2.0).min(quarter(n - 1.0)))
            }
            Norm::Max => Bound::Variance((n.sqrt() / levels).min(quarter(n - 1.0))),
            Norm::Length => Bound::Variance((n.sqrt() / levels).min(quarter(n))),
            Norm::Clipped(_) => Bound::None,
        }
    }

    fn claims(&self) -> Claims {
        Claims::RANDOM
    }
}

/// Returns the bits of the Euclidean length, summed in terms of the largest magnitude, so that no
/// square overflows.
#[inline(always)]
fn length(values: &[f32], max: u32) -> u32 {
    let inverse = 1.0 / f32::from_bits(max).max(f32::MIN_POSITIVE);
    let mut sums = [0.0f32; 16];
    for values in values.chunks(16) {
        let squares = sums.iter_mut().zip(values);
        squares.for_each(|(sum, x)| *sum += (x * inverse) * (x * inverse));
    }
    let length = f32::from_bits(max) * sums.iter().sum::<f32>().sqrt();
    // A length can overflow where no value does.
    if max < INFINITY { length.max(f32::from_bits(max)).to_bits() } else { max }
}
