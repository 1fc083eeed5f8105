//! A codec as users choose it, and its entry in the table of codecs.

use std::fmt;
use std::sync::Arc;

use crate::shown::short;
use crate::{Codec, Error, Exchange, IntSgd, Kind, PowerSgd};

/// A codec as users name it, for instance `int8` or `topk:0.01`.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Values become bytes.
    Bytes(Arc<dyn Codec>),
    /// A matrix becomes the product of two thin ones; tensors that are not matrices stay raw.
    LowRank(PowerSgd),
    /// Values become integers under a scale that follows past averages; integers are summed exactly.
    Integers(IntSgd),
}

/// A line in the table of codecs.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name with its parameter, as help texts and errors show it.
    pub usage: &'static str,
    /// Summary in a few words.
    pub summary: &'static str,
    /// Complete names, all of which are used in tests.
    pub examples: &'static [&'static str],
    /// Makes the codec from the text after the colon, if there is one.
    pub parse: fn(Option<&str>) -> Result<Choice, Error>,
}

impl Entry {
    /// Returns the name before the colon.
    pub fn name(&self) -> &'static str {
        self.usage.split([':', '[']).next().unwrap_or(self.usage)
    }
}

impl Choice {
    /// Returns how encodings of several ranks are combined. Sums of factors are factors and sums of
    /// integers are integers, so low rank and integers are summable.
    pub fn exchange(&self) -> Exchange {
        match self {
            Choice::Bytes(codec) => codec.exchange(),
            Choice::LowRank(_) | Choice::Integers(_) => Exchange::Summable,
        }
    }

    pub(crate) fn bytes(codec: impl Codec + 'static) -> Choice {
        Choice::Bytes(Arc::new(codec))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Bytes(codec) => codec.fmt(f),
            Choice::LowRank(codec) => codec.fmt(f),
            Choice::Integers(codec) => codec.fmt(f),
        }
    }
}

/// Returns a codec that takes no parameter, or refuses the one that it was given.
pub(crate) fn without_parameter(
    name: &str,
    parameter: Option<&str>,
    codec: impl Codec + 'static,
) -> Result<Choice, Error> {
    match parameter {
        None => Ok(Choice::bytes(codec)),
        Some(found) => {
            let context = format!("codec {name} takes no parameter, found '{}'", short(found));
            Err(Error::new(Kind::Parameter, context))
        }
    }
}
