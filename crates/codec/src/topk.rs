//! Largest elements and their indices.
//!
//! Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017), with an
//! exact count instead of a threshold, so that the length is known beforehand. Of `n` elements,
//! `ceil(RATIO * n)` are sent as they are: the indices (see `indices`), then the values as f32.
//! Of equal magnitudes the first ones are sent. The rest stays in the residual.
//!
//! Law: at least `RATIO` of the squared length is sent.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry, refused};
use crate::indices::Indices;
use crate::kernel::Candidate;
use crate::shown::Number;
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, select};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "topk:RATIO",
    summary: "the largest elements, RATIO of all, about 5 bytes each",
    examples: &["topk:0.01", "topk:0.25", "topk:1"],
    parse,
};

#[derive(Debug)]
pub(crate) struct TopK {
    ratio: f64,
}

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    Ok(Choice::bytes(TopK { ratio: ratio("topk", parameter)? }))
}

/// Parses the ratio of codec `name`, a number above 0 and at most 1.
pub(crate) fn ratio(name: &str, parameter: Option<&str>) -> Result<f64, Error> {
    in_unit(parameter).ok_or_else(|| {
        refused(&format!("{name} ratio"), parameter, "a number above 0 and at most 1")
    })
}

/// Parses a number above 0 and at most 1.
pub(crate) fn in_unit(parameter: Option<&str>) -> Option<f64> {
    parameter?.parse().ok().filter(|ratio| *ratio > 0.0 && *ratio <= 1.0)
}

/// Returns the number of elements that are sent: at least one, unless `elements` is 0.
pub(crate) fn count(ratio: f64, elements: usize) -> usize {
    // The rounding error of a decimal ratio in binary must not count as one element more.
    let count = (ratio * elements as f64 - 1e-6).ceil() as usize;
    count.max(1).min(elements)
}

impl TopK {
    pub(crate) fn new(ratio: f64) -> TopK {
        TopK { ratio }
    }

    pub(crate) fn count(&self, elements: usize) -> usize {
        count(self.ratio, elements)
    }

    fn indices(&self, elements: usize) -> Indices {
        Indices::new(self.count(elements), elements)
    }

    /// Writes the chosen elements in the order of indices, and zeroes them in the residual; returns
    /// whether all are finite.
    pub(crate) fn write(
        &self,
        chosen: &[Candidate],
        input: Input<'_>,
        output: &mut [u8],
    ) -> Finite {
        let indices = self.indices(input.len());
        let (index_bytes, value_bytes) = output.split_at_mut(indices.encoded_len());
        let mut writer = indices.writer(index_bytes);
        for (candidate, place) in chosen.iter().zip(value_bytes.chunks_exact_mut(4)) {
            writer.push(candidate.index);
            place.copy_from_slice(&candidate.bits.to_le_bytes());
        }
        if let Input::Feedback { values, .. } = input {
            chosen.iter().for_each(|candidate| values[candidate.index as usize] = 0.0);
        }
        let finite = chosen.iter().all(|candidate| f32::from_bits(candidate.bits).is_finite());
        Finite::when(finite)
    }
}

impl fmt::Display for TopK {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topk:{}", Number(self.ratio))
    }
}

impl Codec for TopK {
    fn exchange(&self) -> Exchange {
        Exchange::Gather
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        Bound::Contraction(self.count(elements) as f64 / elements.max(1) as f64)
    }

    fn claims(&self) -> Claims {
        Claims { nearest: false, separable: false, ..Claims::ALL }
    }

    fn encoded_len(&self, elements: usize) -> usize {
        self.indices(elements).encoded_len() + 4 * self.count(elements)
    }

    fn encode(&self, mut input: Input<'_>, _key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let count = self.count(input.len());
        let chosen = select::largest(&mut input, count);
        self.write(&chosen, input, output)
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        let indices = self.indices(values.len());
        let (index_bytes, value_bytes) = encoded.split_at(indices.encoded_len());
        if write == Write::Set {
            values.fill(0.0);
        }
        for (index, bytes) in indices.read(index_bytes).zip(value_bytes.chunks_exact(4)) {
            let value = &mut values[index? as usize];
            let sent = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            *value = if write == Write::Set { sent } else { *value + sent };
        }
        Ok(())
    }
}
