//! Codecs that send some elements as they are, with their indices.
//!
//! Of `n` elements, `ceil(RATIO * n)` are sent, so that the length is known beforehand: the indices (see
//! `indices`), then the values as f32. The rest stays in the residual. `topk` takes exactly the largest.
//! `graddrop` and `dgc` take elements that reach a threshold, which is estimated from a sample; if too few
//! reach it, other elements follow, from a random position on.
//!
//! Laws: an element is sent as it is or stays in the residual; `topk` sends at least `RATIO` of the squared
//! length.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::crowd::Crowd;
use crate::indices::Indices;
use crate::kernel::Candidate;
use crate::shown::Number;
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, select};

/// Largest elements.
///
/// Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017), with an
/// exact count instead of a threshold. Of equal magnitudes the first ones are sent.
pub(crate) const TOPK: Entry = Entry {
    usage: "topk:RATIO",
    summary: "the largest elements, RATIO of all, about 5 bytes each",
    examples: &["topk:0.01", "topk:0.25", "topk:1"],
    parse: |parameter| parse("topk", parameter, None),
};

/// Elements that reach a sampled threshold.
///
/// Aji and Heafield, "Sparse communication for distributed gradient descent" (2017, section 3). If
/// more elements reach the threshold than are sent, they are taken from a random position on.
pub(crate) const GRADDROP: Entry = Entry {
    usage: "graddrop:RATIO",
    summary: "what a sampled threshold lets through, RATIO of all",
    examples: &["graddrop:0.01", "graddrop:0.25"],
    parse: |parameter| parse("graddrop", parameter, Some(Crowd::First)),
};

/// Largest of the elements that reach a sampled threshold.
///
/// Lin et al., "Deep gradient compression: Reducing the communication bandwidth for distributed
/// training" (2017, section 3.1 and appendix C): if more elements reach the threshold than are sent,
/// the largest are taken. Momentum correction is not part of a codec.
pub(crate) const DGC: Entry = Entry {
    usage: "dgc:RATIO",
    summary: "the largest of what a sampled threshold lets through, RATIO of all",
    examples: &["dgc:0.01", "dgc:0.25"],
    parse: |parameter| parse("dgc", parameter, Some(Crowd::Largest)),
};

#[derive(Debug)]
struct Sparse {
    name: &'static str,
    ratio: f64,
    /// Choice among the elements that reach a sampled threshold; without it the largest are taken.
    crowd: Option<Crowd>,
}

fn parse(
    name: &'static str,
    parameter: Option<&str>,
    crowd: Option<Crowd>,
) -> Result<Choice, Error> {
    let expected = "a number above 0 and at most 1";
    match in_unit(parameter) {
        Some(ratio) => Ok(Choice::bytes(Sparse { name, ratio, crowd })),
        None => Err(Error::parameter(&format!("{name} ratio"), parameter, expected)),
    }
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

impl Sparse {
    fn indices(&self, elements: usize) -> Indices {
        Indices::new(count(self.ratio, elements), elements)
    }

    /// Adds the residual; returns the elements to send in the order of indices, and whether all that were
    /// looked at are finite.
    fn choose(&self, input: &mut Input<'_>, key: Key) -> (Vec<Candidate>, Finite) {
        let (elements, count) = (input.len(), count(self.ratio, input.len()));
        let finite = |candidates: &[Candidate]| {
            let all = candidates.iter().all(|candidate| f32::from_bits(candidate.bits).is_finite());
            Finite::from(all)
        };
        let Some(crowd) = self.crowd else {
            let chosen = select::largest(input, count);
            let finite = finite(&chosen);
            return (chosen, finite);
        };
        // Distance of the threshold below the expected cut, in standard deviations. Where the largest are
        // taken of the elements that reach it, more candidates make the choice better.
        let deviations = if crowd == Crowd::Largest { 3.0 } else { 0.0 };
        let threshold = select::sampled_threshold(input, count, deviations).max(1);
        let passed = select::reaching(input, threshold, count + count / 2);
        let first = key.below(0, elements.max(1) as u32);
        let passed_finite = finite(&passed);
        let chosen = crowd.choose(passed, count, first, input.values());
        let finite = finite(&chosen).and(passed_finite);
        (chosen, finite)
    }
}

impl fmt::Display for Sparse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, Number(self.ratio))
    }
}

impl Codec for Sparse {
    fn exchange(&self) -> Exchange {
        Exchange::Gather
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, elements: usize) -> Bound {
        // A sample may mislead, and then little is sent.
        let least = if self.crowd.is_none() { count(self.ratio, elements) } else { 0 };
        Bound::Contraction(least as f64 / elements.max(1) as f64)
    }

    fn claims(&self) -> Claims {
        let idempotent = self.crowd.is_none();
        Claims { idempotent, nearest: false, separable: false, ..Claims::ALL }
    }

    fn encoded_len(&self, elements: usize) -> usize {
        self.indices(elements).encoded_len() + 4 * count(self.ratio, elements)
    }

    fn encode(&self, mut input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let (chosen, finite) = self.choose(&mut input, key);
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
        finite
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
