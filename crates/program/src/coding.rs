//! Codings: codecs with which gradients and activations may be sent, each with its error.
//!
//! The codec itself determines the length of an encoding. A codec error is the relative squared error of one
//! encoding of numbers that are distributed like gradients: normally, with a spread that varies by a factor
//! of 1.5 from one number to the next. With this spread, every codec has about the error that was measured
//! for a GPT's real gradients: `int4` 0.026 (0.01 to 0.05), `int3` 0.14 (0.05 to 0.16), `int2` 0.19 (0.10 to
//! 0.59), `onebit` 0.45 (0.31 to 0.81).

use std::fmt;
use std::sync::Arc;

use thinwire_codec::{Choice, Codec, Exchange};
use thinwire_wire::random::Key;

use crate::Error;

/// Number of values with which codec errors are measured.
const SAMPLE: u64 = 1 << 14;
/// The standard deviation of the logarithm of the sample's spread.
const VARIATION: f32 = 0.4;

/// Error from which on a codec is not used for activations.
const MOST: f64 = 0.4;

/// A codec with which gradients or activations may be sent.
#[derive(Clone, Debug)]
pub struct Coding {
    codec: Arc<dyn Codec>,
    /// The relative squared error of one encoding.
    pub loss: f64,
}

impl Coding {
    /// Returns the coding for the name of a codec.
    ///
    /// # Errors
    /// If there is no such codec, or it makes sums instead of bytes.
    pub fn parse(name: &str) -> Result<Coding, Error> {
        match Choice::parse(name).map_err(|error| Error::invalid(error.to_string()))? {
            Choice::Bytes(codec) => Ok(Coding { loss: loss(codec.as_ref()), codec }),
            Choice::LowRank(_) | Choice::Integers(_) => {
                let found = format!("codec {name} sends sums, expected one that sends bytes");
                Err(Error::invalid(found).with_hint("int8, int4 and onebit are such codecs"))
            }
        }
    }

    /// Returns the coding for activations and their gradients. Their codec error cannot be sent with a
    /// later exchange.
    ///
    /// # Errors
    /// As [`Coding::parse`], or if the codec's error is too large.
    pub fn of_activations(name: &str) -> Result<Coding, Error> {
        let coding = Coding::parse(name)?;
        let message = match coding.codec.shares_randomness() {
            true => format!(
                "codec {name} draws the same elements on all ranks, expected a codec that encodes all \
                 elements of activations"
            ),
            false if coding.loss < MOST => return Ok(coding),
            false => {
                let found = format!("codec {name} loses {:.2} of activations", coding.loss);
                format!("{found}, expected less than {MOST}")
            }
        };
        Err(Error::invalid(message).with_hint("f16, bf16, e4m3 and int8 are such codecs"))
    }

    /// Returns the codec.
    pub fn codec(&self) -> &Arc<dyn Codec> {
        &self.codec
    }

    /// Returns the expected size of the encoding of this many elements, in bytes.
    pub fn bytes(&self, elements: f64) -> f64 {
        self.codec.expected_len(elements.ceil() as usize) as f64
    }

    /// Returns whether every rank gets the encodings of all ranks. Otherwise, the encodings of a part
    /// are sent only to the part's owner.
    pub fn gathers(&self) -> bool {
        self.codec.exchange() == Exchange::Gather
    }
}

impl PartialEq for Coding {
    fn eq(&self, other: &Coding) -> bool {
        self.to_string() == other.to_string()
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.codec.fmt(f)
    }
}

/// Returns the relative squared error of one encoding of numbers that are distributed like gradients.
fn loss(codec: &dyn Codec) -> f64 {
    let [value, spread] = [1, 2].map(|seed| Key { seed, step: 0, tensor: 0 });
    let element = |at| value.normal(at) * (VARIATION * spread.normal(at)).exp();
    let values: Vec<f32> = (0..SAMPLE).map(element).collect();
    thinwire_codec::relative_error(codec, &values, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_those_of_real_gradients() {
        for (name, range) in [
            ("none", 0.0..1e-12),
            ("int8", 1e-5..1e-3),
            ("int4", 0.01..0.05),
            ("int3", 0.05..0.16),
            ("int2", 0.10..0.59),
            ("onebit", 0.31..0.81),
        ] {
            let loss = Coding::parse(name).unwrap().loss;
            assert!(range.contains(&loss), "{name} loses {loss}");
        }
    }

    #[test]
    fn what_sends_no_bytes_is_refused() {
        let error = Coding::parse("powersgd:4").unwrap_err();
        let expected = "codec powersgd:4 sends sums, expected one that sends bytes";
        assert_eq!(error.to_string(), expected);
        let error = Coding::of_activations("randomk:1").unwrap_err().to_string();
        assert!(
            error.starts_with("codec randomk:1 draws the same elements on all ranks"),
            "{error}"
        );
        let error = Coding::of_activations("onebit").unwrap_err().to_string();
        assert!(error.starts_with("codec onebit loses 0."), "{error}");
        assert!(Coding::parse("zip").unwrap_err().to_string().starts_with("unknown codec 'zip'"));
    }
}
