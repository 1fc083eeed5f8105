//! Random elements, the same on every rank.
//!
//! Stich, Cordonnier and Jaggi, "Sparsified SGD with memory" (2018, definition 2.1). The elements, or
//! with `:block` blocks of 128 of them, are divided into strata of equal size, and one is drawn from each
//! stratum. None is drawn twice, and all are equally likely. The draw follows from the 8 bytes at the
//! beginning, which follow from (seed, step, tensor), so no index is sent, and the encodings of all ranks
//! can be added up. Values are f32; the rest stays in the residual.
//!
//! Law: with the same key, the encoding of a sum is the sum of encodings.

use std::fmt;
use std::ops::Range;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::shown::Number;
use crate::sparse::{count, in_unit};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, kernel};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "randomk:RATIO[:block]",
    summary: "random elements, the same on every rank, RATIO of all, 4 bytes each",
    examples: &["randomk:0.01", "randomk:0.25", "randomk:0.25:block", "randomk:1"],
    parse,
};

#[derive(Debug)]
struct RandomK {
    ratio: f64,
    /// Number of neighbouring elements that are drawn together.
    run: usize,
}

/// Bytes at the beginning, from which the draw follows.
const HEAD: usize = 8;
/// Elements of a block of `:block`.
const RUN: usize = 128;

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    let (number, run) = match parameter.and_then(|found| found.split_once(':')) {
        Some((number, "block")) => (Some(number), RUN),
        _ => (parameter, 1),
    };
    let expected = "a number above 0 and at most 1, or with ':block'";
    match in_unit(number) {
        Some(ratio) => Ok(Choice::bytes(RandomK { ratio, run })),
        None => Err(Error::parameter("randomk ratio", parameter, expected)),
    }
}

/// Draw of some runs of neighbouring elements.
#[derive(Clone, Copy)]
struct Draw {
    key: Key,
    elements: usize,
    run: usize,
    /// Number of all runs, and of the drawn ones.
    runs: usize,
    count: usize,
}

impl Draw {
    /// Returns the drawn elements in order.
    fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let start = move |stratum: usize| {
            (stratum as u64 * self.runs as u64 / self.count.max(1) as u64) as usize
        };
        (0..self.count.div_ceil(4)).flat_map(move |four| {
            let words = self.key.words(four as u64);
            (4 * four..self.count.min(4 * four + 4)).zip(words).map(move |(stratum, word)| {
                let size = (start(stratum + 1) - start(stratum)) as u64;
                let drawn = start(stratum) + ((u64::from(word) * size) >> 32) as usize;
                drawn * self.run..((drawn + 1) * self.run).min(self.elements)
            })
        })
    }
}

impl RandomK {
    fn draw(&self, elements: usize, head: &[u8]) -> Draw {
        let seed = head.iter().rev().fold(0, |seed, byte| seed << 8 | u64::from(*byte));
        let runs = elements.div_ceil(self.run);
        let key = Key { seed, step: 0, tensor: 0 };
        Draw { key, elements, run: self.run, runs, count: count(self.ratio, runs) }
    }
}

impl fmt::Display for RandomK {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "randomk:{}{}", Number(self.ratio), if self.run == 1 { "" } else { ":block" })
    }
}

impl Codec for RandomK {
    fn exchange(&self) -> Exchange {
        Exchange::Summable
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn shares_randomness(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        // One run of every stratum is drawn, of the largest ones with the smallest probability.
        let runs = elements.div_ceil(self.run).max(1);
        Bound::Mean(1.0 / runs.div_ceil(count(self.ratio, runs)) as f64)
    }

    fn claims(&self) -> Claims {
        Claims { idempotent: true, exact: true, ..Claims::RANDOM }
    }

    fn block(&self) -> usize {
        self.run
    }

    fn encoded_len(&self, elements: usize) -> usize {
        if elements == 0 {
            return 0;
        }
        let runs = count(self.ratio, elements.div_ceil(self.run));
        HEAD + 4 * runs * self.run.min(elements)
    }

    fn encode(&self, input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        if output.is_empty() {
            return Finite::Yes;
        }
        let (head, places) = output.split_at_mut(HEAD);
        let [a, b, _, _] = key.words(u64::MAX);
        head.copy_from_slice(&(u64::from(a) | u64::from(b) << 32).to_le_bytes());
        let draw = self.draw(input.len(), head);
        match input {
            Input::Plain(values) => {
                pick(draw, values, places);
                Finite::from(kernel::is_finite(values))
            }
            Input::Feedback { values, residual } => {
                kernel::add(values, residual);
                let finite = kernel::is_finite(values);
                pick(draw, values, places);
                draw.ranges().for_each(|range| values[range].fill(0.0));
                Finite::from(finite)
            }
        }
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        if write == Write::Set {
            values.fill(0.0);
        }
        let (head, places) = encoded.split_at(HEAD.min(encoded.len()));
        let draw = self.draw(values.len(), head);
        let runs = places.chunks_exact(4 * self.run.min(values.len()).max(1));
        for (range, bytes) in draw.ranges().zip(runs) {
            let values = values[range].iter_mut().zip(bytes.as_chunks().0);
            match write {
                Write::Set => values.for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes)),
                Write::Add => values.for_each(|(x, bytes)| *x += f32::from_le_bytes(*bytes)),
            }
        }
        Ok(())
    }
}

/// Writes the drawn values, and zeros behind a run that the end of the tensor cuts.
fn pick(draw: Draw, values: &[f32], places: &mut [u8]) {
    let runs = places.chunks_exact_mut(4 * draw.run.min(values.len()));
    for (range, bytes) in draw.ranges().zip(runs) {
        let (own, rest) = bytes.split_at_mut(4 * range.len());
        let pairs = own.as_chunks_mut().0.iter_mut().zip(&values[range]);
        pairs.for_each(|(bytes, x)| *bytes = x.to_le_bytes());
        rest.fill(0);
    }
}
