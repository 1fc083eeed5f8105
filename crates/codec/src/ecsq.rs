//! Entropy-coded scalar quantisation (ECSQ): a uniform quantiser with a dead zone, one step per message.
//!
//! `ecsq:S` quantises with a step of S times the root mean square of the values. Symbols are coded by
//! [rANS](crate::kernel::rans) with the table of the message, so that many small values cost a fraction
//! of a bit each. At high rates a uniform quantiser is within a quarter of a bit of what any code needs
//! (Gish and Pierce, 1968), and one step for all values is reverse water-filling: every value has the same
//! error, and small ones wait in the residual until they are worth a level (Sullivan, 1996, for dead zones).
//!
//! Format, little-endian: length of the encoding (u32), step (f32); unless the step is 0, which makes all
//! values 0, then the values of levels 1 and 2 and the offset of further ones (3 f32), the number of escapes
//! (u32), the escapes (f32 each), and the [entropy-coded](crate::entropy) symbols.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry, refused};
use crate::kernel::bits::read_f32;
use crate::kernel::rans::histogram;
use crate::kernel::uniform::{
    DEAD_ZONE, ESCAPE, Levels, Quantise, Restore, Subtract, SumOfSquares, Sums, ZERO,
};
use crate::kernel::{add, imp};
use crate::shown::Number;
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Kind, Write, entropy};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "ecsq:STEP",
    summary: "uniform steps of STEP rms, entropy-coded; 1:2 bits, 0.5:3 bits",
    examples: &["ecsq:1", "ecsq:0.5", "ecsq:0.05"],
    parse,
};

/// Entropy-coded scalar quantisation.
#[derive(Clone, Copy, Debug)]
struct Ecsq {
    /// Step over the root mean square of a message.
    step: f32,
}

/// Smallest and largest step. Below, most values would be escapes; above, equal values would all lie in
/// the dead zone, and never be sent.
const STEPS: std::ops::RangeInclusive<f32> = 0.02..=1.6;

/// Root mean square below which all values are sent as zeros.
const SMALLEST_RMS: f64 = 1e-30;

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    let step = parameter.and_then(|text| text.parse().ok()).filter(|step| STEPS.contains(step));
    let expected = || format!("a number from {} to {}", STEPS.start(), STEPS.end());
    let step = step.ok_or_else(|| refused("ecsq step", parameter, &expected()))?;
    Ok(Choice::bytes(Ecsq { step }))
}

impl fmt::Display for Ecsq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ecsq:{}", Number(self.step))
    }
}

/// Bytes of the length and the step.
const SHORT: usize = 8;
/// Bytes before the escapes.
const HEAD: usize = 24;

impl Ecsq {
    /// Returns the most bits per element of levels with this variance: those of normal ones (Massey, 1988).
    fn bits(variance: f64) -> f64 {
        let e = std::f64::consts::E;
        0.5 * (std::f64::consts::TAU * e * (variance + 1.0 / 12.0)).log2()
    }

    /// Encodes values with a step; returns the length and the levels, or none if they do not fit `output`.
    fn message(
        values: &[f32],
        step: f32,
        symbols: &mut [u8],
        output: &mut [u8],
    ) -> Option<(usize, Levels)> {
        let sums = imp().run(Quantise { values, symbols, inverse: 1.0 / step });
        let counts = histogram(symbols);
        let (levels, escapes) = (centroids(step, &sums, &counts), counts[usize::from(ESCAPE)]);
        let (head, rest) = output.split_at_mut_checked(HEAD + 4 * escapes as usize)?;
        let length = head.len() + entropy::encode(symbols, &counts, rest)?;
        let Levels { step, first, second, further } = levels;
        let fixed = [length as u32, step.to_bits(), first.to_bits(), second.to_bits()];
        let fixed = fixed.into_iter().chain([further.to_bits(), escapes]);
        let beyond = escapes_of(symbols, escapes).map(|at| values[at].to_bits());
        for (place, word) in head.as_chunks_mut().0.iter_mut().zip(fixed.chain(beyond)) {
            *place = word.to_le_bytes();
        }
        Some((length, levels))
    }
}

/// Returns the places of escapes, of which there are so many.
fn escapes_of(symbols: &[u8], count: u32) -> impl Iterator<Item = usize> {
    let escapes = symbols.iter().enumerate().filter(|(_, symbol)| **symbol == ESCAPE);
    escapes.map(|(at, _)| at).take(count as usize)
}

/// Returns the values of levels: the means of the values that have them.
fn centroids(step: f32, sums: &Sums, counts: &[u32; 256]) -> Levels {
    let of_level = |level: u8| {
        f64::from(counts[usize::from(ZERO + level)]) + f64::from(counts[usize::from(ZERO - level)])
    };
    let further: f64 = (3..=127).map(of_level).sum();
    let mean = |sum: f64, count: f64, other: f64| {
        let steps = if count > 0.0 { sum / count } else { other };
        (steps * f64::from(step)).min(f32::MAX.into()) as f32
    };
    Levels {
        step,
        first: mean(sums.first, of_level(1), 1.0),
        second: mean(sums.second, of_level(2), 2.0),
        further: mean(sums.further, further, 0.0),
    }
}

impl Codec for Ecsq {
    fn exchange(&self) -> Exchange {
        Exchange::TwoShot
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, _elements: usize) -> Bound {
        // No element is further from its value than half a step and the dead zone.
        Bound::Contraction(1.0 - (f64::from(self.step) * f64::from(0.5 + DEAD_ZONE)).powi(2))
    }

    fn claims(&self) -> Claims {
        Claims { idempotent: false, exact: false, nearest: false, separable: false, ..Claims::ALL }
    }

    fn is_variable(&self) -> bool {
        true
    }

    fn encoded_len(&self, elements: usize) -> usize {
        // A magnitude becomes at most a level of 2 / (1 + 2 z) of its steps, with a dead zone of z.
        let step = f64::from(self.step) * f64::from(0.5 + DEAD_ZONE);
        // The table's rounding and escapes, whose share is at most that of Chebyshev.
        let more = 0.2 + 32.0 * (1.0 / (127.0 * f64::from(self.step)).powi(2)).min(1.0);
        let bits = Ecsq::bits(1.0 / (step * step)) + more;
        HEAD + entropy::TABLE_MAX + (elements as f64 * bits / 8.0).ceil() as usize
    }

    fn expected_len(&self, elements: usize) -> usize {
        let bits = Ecsq::bits(1.0 / f64::from(self.step).powi(2));
        HEAD + entropy::TABLE_MAX / 2 + (elements as f64 * bits / 8.0).ceil() as usize
    }

    fn encode(&self, mut input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        if let Input::Feedback { values, residual } = &mut input {
            add(values, residual);
        }
        let squares = imp().run(SumOfSquares(input.values()));
        let rms = (squares / input.len().max(1) as f64).sqrt();
        output[..SHORT].copy_from_slice(&[SHORT as u8, 0, 0, 0, 0, 0, 0, 0]);
        // The squares of NaN and of infinity are none of numbers.
        if !squares.is_finite() || rms < SMALLEST_RMS {
            return Finite::when(squares.is_finite());
        }
        let mut symbols = vec![0; input.len()];
        // Twice the largest magnitude is beyond f32 where all are that large.
        let mut step = (rms * f64::from(self.step)).min(f64::from(f32::MAX / 4.0)) as f32;
        let levels = loop {
            if let Some((_, levels)) = Ecsq::message(input.values(), step, &mut symbols, output) {
                break levels;
            }
            // Never seen: the longest encoding has room for more entropy than there can be.
            step *= 2.0;
        };
        if let Input::Feedback { values, .. } = input {
            imp().run(Subtract { symbols: &symbols, levels, values });
            let escapes = u32::from_le_bytes([output[20], output[21], output[22], output[23]]);
            escapes_of(&symbols, escapes).for_each(|at| values[at] = 0.0);
        }
        Finite::Yes
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        let stated =
            encoded.first_chunk().map_or(SHORT, |bytes| u32::from_le_bytes(*bytes) as usize);
        Error::check_length(self, encoded, stated, values.len())?;
        let corrupt = || {
            let (found, count) = (encoded.len(), values.len());
            let text = format!("{found} bytes are no encoding of {count} elements by {self}");
            Error::new(Kind::Corrupt, text)
        };
        let word = |place: usize| read_f32(&encoded[4 * place..]);
        if encoded.len() == SHORT && word(1) == 0.0 {
            if write == Write::Set {
                values.fill(0.0);
            }
            return Ok(());
        }
        if encoded.len() < HEAD {
            return Err(corrupt());
        }
        let levels = Levels { step: word(1), first: word(2), second: word(3), further: word(4) };
        let escapes = word(5).to_bits();
        let mut symbols = vec![0; values.len()];
        let rest = (escapes as usize).checked_mul(4);
        let rest = rest.and_then(|escapes| encoded[HEAD..].split_at_checked(escapes));
        let (beyond, coded) = rest.ok_or_else(corrupt)?;
        entropy::decode(coded, &mut symbols).ok_or_else(corrupt)?;
        if symbols.iter().filter(|symbol| **symbol == ESCAPE).count() != escapes as usize {
            return Err(corrupt());
        }
        let kept = escapes_of(&symbols, escapes).map(|at| values[at]).collect::<Vec<_>>();
        imp().run(Restore { symbols: &symbols, levels, write, values });
        let sent = beyond.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for ((at, sent), kept) in escapes_of(&symbols, escapes).zip(sent).zip(kept) {
            values[at] = if write == Write::Set { sent } else { kept + sent };
        }
        Ok(())
    }
}
