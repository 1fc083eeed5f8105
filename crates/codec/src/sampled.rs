//! Codecs that send the elements that reach a threshold, which is estimated from a sample.
//!
//! `graddrop` and `dgc`. The number of sent elements is fixed, so that the length is known beforehand:
//! if too few reach the threshold, other elements follow, from a random position on. The layout is
//! that of `topk`.
//!
//! Law: an element is sent as it is or stays in the residual.

use std::fmt;

use thinwire_wire::random::Key;

use crate::choice::{Choice, Entry};
use crate::crowd::Crowd;
use crate::shown::Number;
use crate::topk::{TopK, ratio};
use crate::{Bound, Claims, Codec, Error, Exchange, Finite, Input, Write, select};

/// Elements that reach a sampled threshold.
///
/// Aji and Heafield, "Sparse communication for distributed gradient descent" (2017, section 3). If
/// more elements reach the threshold than are sent, they are taken from a random position on.
pub(crate) const GRADDROP: Entry = Entry {
    usage: "graddrop:RATIO",
    summary: "what a sampled threshold lets through, RATIO of all",
    examples: &["graddrop:0.01", "graddrop:0.25"],
    parse: |parameter| parse("graddrop", parameter, Crowd::First),
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
    parse: |parameter| parse("dgc", parameter, Crowd::Largest),
};

#[derive(Debug)]
struct Sampled {
    name: &'static str,
    ratio: f64,
    crowd: Crowd,
    layout: TopK,
}

/// Returns the codec `name` of the ratio that `parameter` gives.
pub(crate) fn parse(
    name: &'static str,
    parameter: Option<&str>,
    crowd: Crowd,
) -> Result<Choice, Error> {
    let ratio = ratio(name, parameter)?;
    Ok(Choice::bytes(Sampled { name, ratio, crowd, layout: TopK::new(ratio) }))
}

impl Sampled {
    /// Returns the distance of the threshold below the expected cut, in standard deviations. Where the
    /// largest are taken of the elements that reach it, more candidates make the choice better.
    fn deviations(&self) -> f64 {
        match self.crowd {
            Crowd::First => 0.0,
            Crowd::Largest => 3.0,
        }
    }
}

impl fmt::Display for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, Number(self.ratio))
    }
}

impl Codec for Sampled {
    fn exchange(&self) -> Exchange {
        Exchange::Gather
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn bound(&self, _elements: usize) -> Bound {
        // A sample may mislead, and then little is sent.
        Bound::Contraction(0.0)
    }

    fn claims(&self) -> Claims {
        Claims { idempotent: false, nearest: false, separable: false, ..Claims::ALL }
    }

    fn encoded_len(&self, elements: usize) -> usize {
        self.layout.encoded_len(elements)
    }

    fn encode(&self, mut input: Input<'_>, key: Key, output: &mut [u8]) -> Finite {
        assert_eq!(output.len(), self.encoded_len(input.len()), "output of {self}");
        let (elements, count) = (input.len(), self.layout.count(input.len()));
        let threshold = select::sampled_threshold(&input, count, self.deviations()).max(1);
        let first = key.below(0, elements.max(1) as u32);
        let passed = select::reaching(&mut input, threshold, count + count / 2);
        let finite = passed.iter().all(|candidate| f32::from_bits(candidate.bits).is_finite());
        let chosen = self.crowd.choose(passed, count, first, input.values());
        self.layout.write(&chosen, input, output).and(Finite::when(finite))
    }

    fn decode(&self, encoded: &[u8], write: Write, values: &mut [f32]) -> Result<(), Error> {
        Error::check_length(self, encoded, self.encoded_len(values.len()), values.len())?;
        self.layout.decode(encoded, write, values)
    }
}
