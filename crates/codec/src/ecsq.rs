//! Entropy-coded scalar quantisation (ECSQ): a uniform quantiser with a dead zone, decoded to centroids.
//!
//! `ecsq:S` quantises each section of 65,536 values with a step of S times the root mean square of the
//! section. [rANS](crate::kernel::rans) codes the symbols with one table per message, so that a small
//! value costs a fraction of a bit. At high rates the entropy of a uniform quantiser is within a quarter
//! of a bit of the rate-distortion function (Gish and Pierce, "Asymptotically efficient quantizing",
//! 1968). One step for many values is reverse water-filling: values above the step all get the same
//! distortion, and smaller ones wait in the residual until they reach a level. On dead zones: Sullivan,
//! "Efficient scalar quantization of exponential and Laplacian random variables", 1996. With a single
//! step for a whole message, small gradients that share a message with large ones would stay unsent for
//! long.
//!
//! Format, little-endian: length of the encoding and number of escapes (u32 each). If all values are sent
//! as 0, the encoding ends here. Otherwise come the values of levels 1 and 2 and the offset of further levels,
//! in steps (f32 each), the step of every section (f32 each), the escapes (f32 each), and the
//! [entropy-coded](crate::entropy) symbols.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::entropy::with_scratch;
use crate::kernel::imp;
use crate::kernel::rans::histogram;
use crate::kernel::uniform::{
    AddSquares, DEAD_ZONE, ESCAPE, Escapes, Levels, Quantise, Restore, Squares, Subtract, Sums,
    ZERO,
};
use crate::shown::Number;
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, entropy};

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
    /// Step over the root mean square of a section.
    step: f32,
}

/// Smallest and largest step. Escapes begin at 127 steps; with smaller steps they would be frequent. With
/// larger steps, values that are all equal would lie in the dead zone, and never be sent.
const STEPS: std::ops::RangeInclusive<f32> = 0.02..=1.6;

/// Root mean square below which all values are sent as zeros.
const SMALLEST_RMS: f64 = 1e-30;

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    let step = parameter.and_then(|text| text.parse().ok()).filter(|step| STEPS.contains(step));
    let expected = || format!("a number from {} to {}", STEPS.start(), STEPS.end());
    let step = step.ok_or_else(|| Error::parameter("ecsq step", parameter, &expected()))?;
    Ok(Choice::bytes(Ecsq { step }))
}

impl fmt::Display for Ecsq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ecsq:{}", Number(self.step))
    }
}

/// Number of values of a section, which share a step: about as many as a tensor has, and enough that steps
/// take next to no bytes.
const SECTION: usize = 1 << 16;

/// Bytes of an encoding of zeros.
const SHORT: usize = 8;

/// Returns the bytes before the escapes.
fn head_len(elements: usize) -> usize {
    SHORT + 12 + 4 * elements.div_ceil(SECTION)
}

impl Ecsq {
    /// Returns an upper bound on the entropy, in bits, of levels with this variance (Massey, "On the entropy
    /// of integer-valued random variables", 1988).
    fn bits(variance: f64) -> f64 {
        let e = std::f64::consts::E;
        0.5 * (std::f64::consts::TAU * e * (variance + 1.0 / 12.0)).log2()
    }

    /// Returns the step of a section from the sum of its squares; `None` if a value is not finite.
    fn step(self, squares: f64, elements: usize) -> Option<f32> {
        let rms = (squares / elements as f64).sqrt();
        let step = (rms * f64::from(self.step)).min(f32::MAX.into()) as f32;
        // Squares of f32 do not overflow f64, so only NaN and infinity make a sum that is not finite.
        squares.is_finite().then_some(if rms < SMALLEST_RMS { 0.0 } else { step })
    }

    /// Adds the residual to values and quantises them; `None` if one is not finite.
    fn quantise(self, input: &mut Input<'_>, symbols: &mut [u8]) -> Option<Quantised> {
        let mut quantised = Quantised::default();
        let mut is_finite = true;
        // Section by section, so that all passes but the first find the values in the cache.
        input.for_chunks(SECTION, |first, mut section| {
            let squares = match &mut section {
                Input::Plain(values) => imp().run(Squares(values)),
                Input::Feedback { values, residual } => imp().run(AddSquares { values, residual }),
            };
            let values = section.values();
            let step = self.step(squares, values.len());
            is_finite &= step.is_some();
            let symbols = &mut symbols[first..first + values.len()];
            quantised.add(values, step.unwrap_or(0.0), symbols);
        });
        is_finite.then_some(quantised)
    }
}

/// Quantised values of a message: the step of every section, and the sums and counts of levels.
#[derive(Debug)]
struct Quantised {
    steps: Vec<f32>,
    /// For every level, the sum of magnitudes; below, their number. Both are weighted by the square of
    /// the section's step.
    sums: Sums,
    weights: Sums,
    counts: [u32; 256],
}

impl Default for Quantised {
    fn default() -> Quantised {
        let (sums, weights) = (Sums::default(), Sums::default());
        Quantised { steps: Vec::new(), sums, weights, counts: [0; 256] }
    }
}

impl Quantised {
    /// Quantises one more section.
    fn add(&mut self, values: &[f32], step: f32, symbols: &mut [u8]) {
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        let sums = imp().run(Quantise { values, symbols, inverse });
        let counts = histogram(symbols);
        let count = |level: u8| {
            f64::from(counts[usize::from(ZERO + level)] + counts[usize::from(ZERO - level)])
        };
        let weights =
            Sums { first: count(1), second: count(2), further: (3..=127).map(count).sum() };
        // Errors count by the square of the step, so the means of least squares do, too.
        let weight = f64::from(step).powi(2);
        self.sums += sums * weight;
        self.weights += weights * weight;
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        self.steps.push(step);
    }

    /// Writes the encoding of values with these symbols; returns the places of escapes, or `None` if the
    /// encoding does not fit `output`.
    fn write(&self, values: &[f32], symbols: &[u8], output: &mut [u8]) -> Option<Vec<usize>> {
        let escapes = match self.counts[usize::from(ESCAPE)] {
            0 => Vec::new(),
            _ => imp().run(Escapes(symbols)),
        };
        let head_len = head_len(values.len()) + 4 * escapes.len();
        let (head, rest) = output.split_at_mut_checked(head_len)?;
        let length = head_len + entropy::encode(symbols, &self.counts, rest)?;
        let Levels { first, second, further } = self.levels();
        let floats = [first, second, further].into_iter().chain(self.steps.iter().copied());
        let floats = floats.chain(escapes.iter().map(|at| values[*at]));
        let words = [length as u32, escapes.len() as u32];
        let words = words.into_iter().chain(floats.map(f32::to_bits));
        for (place, word) in head.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        Some(escapes)
    }

    /// Returns the values of levels. They are centroids: the means of the values that have the level.
    fn levels(&self) -> Levels {
        let mean = |sum: f64, weight: f64, other: f32| {
            if weight > 0.0 { (sum / weight) as f32 } else { other }
        };
        Levels {
            first: mean(self.sums.first, self.weights.first, 1.0),
            second: mean(self.sums.second, self.weights.second, 2.0),
            further: mean(self.sums.further, self.weights.further, 0.0),
        }
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
        // Centroids by squared steps err no more in all than the middles of levels, which are half a step
        // from their values at most, and the dead zone more.
        Bound::Contraction(1.0 - (f64::from(self.step) * f64::from(0.5 + DEAD_ZONE)).powi(2))
    }

    fn claims(&self) -> Claims {
        Claims { idempotent: false, exact: false, nearest: false, separable: false, ..Claims::ALL }
    }

    fn is_variable(&self) -> bool {
        true
    }

    fn encoded_len(&self, elements: usize) -> usize {
        // With a dead zone of z, a level is at most the magnitude, in steps, over (1/2 + z).
        let step = f64::from(self.step) * f64::from(0.5 + DEAD_ZONE);
        // Room for rounded frequencies (0.1) and states (0.13), and for escapes, whose share Chebyshev's
        // inequality bounds.
        let more = 0.25 + 32.0 * (1.0 / (127.0 * f64::from(self.step)).powi(2)).min(1.0);
        let bits = Ecsq::bits(1.0 / (step * step)) + more;
        head_len(elements)
            + entropy::overhead_max(elements)
            + (elements as f64 * bits / 8.0).ceil() as usize
    }

    fn expected_len(&self, elements: usize) -> usize {
        let bits = Ecsq::bits(1.0 / f64::from(self.step).powi(2));
        head_len(elements)
            + entropy::overhead_max(elements)
            + (elements as f64 * bits / 8.0).ceil() as usize
    }

    fn encode(&self, mut input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        output[..SHORT].copy_from_slice(&[SHORT as u8, 0, 0, 0, 0, 0, 0, 0]);
        with_scratch(input.len(), |symbols| {
            let Some(quantised) = self.quantise(&mut input, symbols) else { return Finite::No };
            if quantised.steps.iter().any(|step| *step > 0.0) {
                encode(input, quantised, symbols, output);
            }
            Finite::Yes
        })
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_stated(self, encoded, SHORT, values.len())?;
        if encoded.len() == SHORT {
            if write == Write::Set {
                values.fill(0.0);
            }
            return Ok(());
        }
        let restored =
            with_scratch(values.len(), |symbols| restore(encoded, write, symbols, values));
        restored.ok_or_else(|| Error::no_encoding(self, encoded, values.len()))
    }
}

/// Encodes quantised values; with feedback, leaves the residual in their place.
fn encode(input: Input<'_>, quantised: Quantised, symbols: &[u8], output: &mut [u8]) {
    // The longest encoding has room for any levels; otherwise all values would stay in the residual.
    let Some(escapes) = quantised.write(input.values(), symbols, output) else { return };
    let Input::Feedback { values, .. } = input else { return };
    let levels = quantised.levels();
    let sections = values.chunks_mut(SECTION).zip(symbols.chunks(SECTION));
    for ((values, symbols), step) in sections.zip(quantised.steps) {
        imp().run(Subtract { symbols, levels, step, values });
    }
    escapes.into_iter().for_each(|at| values[at] = 0.0);
}

/// Decodes an encoding that has symbols; `None` if the bytes are not a valid encoding.
fn restore(encoded: &[u8], write: Write, symbols: &mut [u8], values: &mut [f32]) -> Option<()> {
    let (head, rest) = encoded.split_at_checked(head_len(values.len()))?;
    let float = |place: usize| f32::from_bits(word(head, place));
    let levels = Levels { first: float(2), second: float(3), further: float(4) };
    let (beyond, coded) = rest.split_at_checked((word(head, 1) as usize).checked_mul(4)?)?;
    entropy::decode(coded, symbols)?;
    let escapes = imp().run(Escapes(symbols));
    if escapes.len() != beyond.len() / 4 {
        return None;
    }
    let kept: Vec<f32> = escapes.iter().map(|at| values[*at]).collect();
    let sections = values.chunks_mut(SECTION).zip(symbols.chunks(SECTION));
    for (place, (values, symbols)) in sections.enumerate() {
        imp().run(Restore { symbols, levels, step: float(5 + place), write, values });
    }
    let sent = beyond.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    for ((at, sent), kept) in escapes.into_iter().zip(sent).zip(kept) {
        values[at] = if write == Write::Set { sent } else { kept + sent };
    }
    Some(())
}

/// Returns the word at `place`, counted in words.
fn word(bytes: &[u8], place: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[4 * place + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distortion;

    /// Many quiet sections whose level 1 is nearly level 2, and a loud one whose level 1 is nearly level 0.
    #[test]
    fn quiet_sections_do_not_spoil_loud_ones() {
        let codec = Ecsq { step: 1.6 };
        let mut values = vec![1.0; SECTION];
        // Two of 13 values are all that there is: each is 1.59 steps.
        let quiet =
            (0..20 * SECTION).map(|at| if [0, 5].contains(&(at % 13)) { 1e-3 } else { 0.0 });
        values.extend(quiet);
        let key = Key { seed: 1, step: 2, tensor: 3 };
        let Bound::Contraction(delta) = codec.bound(values.len()) else { unreachable!() };
        let Distortion { error, .. } = Distortion::of(&codec, &values, key);
        assert!(error <= 1.0 - delta, "{error} of {}", 1.0 - delta);
        assert!(error < 0.01, "the loud section is all that counts: {error}");
    }
}
