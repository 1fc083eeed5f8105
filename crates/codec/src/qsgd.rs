//! Random rounding to evenly spaced levels.
//!
//! Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding"
//! (2017, section 3), with codes of a fixed width, so that the length is known beforehand. Of `BITS`
//! bits there are `2^(BITS - 1) - 1` levels on either side of 0, up to the block's norm: its largest
//! magnitude, which loses least, or with `:l2` its Euclidean length, as in the paper.
//!
//! Law: right in the mean, and a code is one of the two levels next to the value.

use std::fmt;

use crate::choice::{Choice, Entry, refused};
use crate::coded::Coded;
use crate::kernel::bits::{INFINITY, round};
use crate::kernel::codes::Code;
use crate::kernel::{RANDOM_BITS, Scale};
use crate::shown::Number;
use crate::{Bound, Claims, Error};

/// The line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    name: "qsgd",
    usage: "qsgd:BITS[:l2]",
    summary: "random rounding to levels of the block's largest or of its length",
    examples: &["qsgd:3", "qsgd:4", "qsgd:8", "qsgd:4:l2"],
    parse,
};

/// What the highest level stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Norm {
    /// The largest magnitude of the block.
    Largest,
    /// The Euclidean length of the block.
    Length,
    /// The largest magnitude, but no more than so many times the root of the mean square: what is
    /// above is cut off.
    Clipped(f32),
}

/// Levels of a norm; with two bits they are those of `terngrad`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub(crate) bits: usize,
    pub(crate) norm: Norm,
}

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    let (bits, norm) = match parameter.and_then(|found| found.split_once(':')) {
        Some((bits, "l2")) => (Some(bits), Norm::Length),
        _ => (parameter, Norm::Largest),
    };
    match bits.and_then(|found| found.parse().ok()) {
        Some(bits @ 3..=8) => Ok(Choice::bytes(Coded(Levels { bits, norm }))),
        _ => Err(refused("qsgd bits", parameter, "3..=8, or with ':l2'")),
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.norm {
            Norm::Largest if self.bits == 2 => f.write_str("terngrad"),
            Norm::Largest => write!(f, "qsgd:{}", self.bits),
            Norm::Length => write!(f, "qsgd:{}:l2", self.bits),
            Norm::Clipped(clip) => write!(f, "terngrad:{}", Number(clip)),
        }
    }
}

impl Levels {
    /// The largest code.
    #[inline(always)]
    pub(crate) fn levels(&self) -> i32 {
        (1 << (self.bits - 1)) - 1
    }
}

impl Code for Levels {
    const SCALED: bool = true;
    const RANDOM: bool = true;

    #[inline(always)]
    fn bits(&self) -> usize {
        self.bits
    }

    #[inline(always)]
    fn scale(&self, values: &[f32], largest: u32) -> Option<Scale> {
        let norm = match self.norm {
            Norm::Largest => largest,
            Norm::Length => length(values, largest),
            Norm::Clipped(clip) => {
                let mean = length(values, largest);
                let mean = f32::from_bits(mean) / (values.len() as f32).sqrt();
                largest.min((mean * clip).to_bits())
            }
        };
        Scale::of(norm, self.levels(), true)
    }

    #[inline(always)]
    fn code(&self, x: f32, scale: Scale, random: u32) -> u32 {
        // The sum of whole digits and random ones, cut off behind the point.
        let digits = x * (scale.inverse * (1 << RANDOM_BITS) as f32);
        let most = (self.levels() << RANDOM_BITS) as f32;
        let digits = if digits > most { most } else { digits };
        let rounded = round(if digits < -most { -most } else { digits });
        (((rounded + random as i32) >> RANDOM_BITS).min(self.levels())) as u32
    }

    #[inline(always)]
    fn value(&self, code: u32, scale: f32) -> f32 {
        let unused = 32 - self.bits;
        ((code << unused) as i32 >> unused) as f32 * scale
    }

    fn needs_feedback(&self) -> bool {
        matches!(self.norm, Norm::Clipped(_))
    }

    /// Rounding by a step `u` up or down has the variance `p (1 - p) u²`, at most `u²/4` and at most
    /// `u` times the magnitude.
    fn bound(&self, elements: usize) -> Bound {
        let (n, levels) = (elements as f64, f64::from(self.levels()));
        let quarter = |others: f64| others / (4.0 * levels * levels);
        match self.norm {
            Norm::Largest if self.levels() == 1 => {
                Bound::Variance(((n.sqrt() - 1.0) / 2.0).min(quarter(n - 1.0)))
            }
            Norm::Largest => Bound::Variance((n.sqrt() / levels).min(quarter(n - 1.0))),
            Norm::Length => Bound::Variance((n.sqrt() / levels).min(quarter(n))),
            Norm::Clipped(_) => Bound::None,
        }
    }

    fn claims(&self) -> Claims {
        Claims::RANDOM
    }
}

/// The Euclidean length as bits, in terms of the largest magnitude, so that no square overflows.
#[inline(always)]
fn length(values: &[f32], largest: u32) -> u32 {
    let inverse = 1.0 / f32::from_bits(largest).max(f32::MIN_POSITIVE);
    let mut sums = [0.0f32; 16];
    for values in values.chunks(16) {
        let squares = sums.iter_mut().zip(values);
        squares.for_each(|(sum, x)| *sum += (x * inverse) * (x * inverse));
    }
    let length = f32::from_bits(largest) * sums.iter().sum::<f32>().sqrt();
    // A length can overflow where no value does.
    if largest < INFINITY { length.max(f32::from_bits(largest)).to_bits() } else { largest }
}
