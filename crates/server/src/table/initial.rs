//! First values of rows.

use std::fmt;

use thinwire_wire::random::Key;

/// First values of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Zeros.
    Zeros,
    /// This number everywhere.
    Constant(f32),
    /// Uniform from minus this number to this number.
    Uniform(f32),
    /// Normal with this standard deviation.
    Normal(f32),
    /// Values of a file with which the job begins. It has all rows, which count as written.
    Checkpoint,
}

impl Initial {
    /// Reads `zeros`, `constant:1`, `uniform:0.05`, `normal:0.01` or `checkpoint`.
    ///
    /// # Errors
    /// If the text is another, or the number is negative or infinite.
    pub fn parse(text: &str) -> Result<Initial, InvalidInitial> {
        let invalid = || InvalidInitial(text.to_owned());
        let (name, number) = text.split_once(':').unwrap_or((text, ""));
        let number = number.parse().ok().filter(|number: &f32| number.is_finite());
        match (name, number.filter(|number| *number >= 0.0 || name == "constant")) {
            ("zeros", None) if text == name => Ok(Initial::Zeros),
            ("checkpoint", None) if text == name => Ok(Initial::Checkpoint),
            ("constant", Some(value)) => Ok(Initial::Constant(value)),
            ("uniform", Some(bound)) => Ok(Initial::Uniform(bound)),
            ("normal", Some(deviation)) => Ok(Initial::Normal(deviation)),
            _ => Err(invalid()),
        }
    }

    /// Writes the first values of a row.
    pub(super) fn fill(self, row: u64, key: Key, values: &mut [f32]) {
        let width = values.len() as u64;
        let columns = values.iter_mut().zip(row * width..);
        match self {
            // With a checkpoint every row is written, unless a peer's bytes are wrong.
            Initial::Zeros | Initial::Checkpoint => values.fill(0.0),
            Initial::Constant(value) => values.fill(value),
            Initial::Uniform(bound) => {
                columns.for_each(|(it, at)| *it = bound * (2.0 * key.uniform(at) - 1.0));
            }
            Initial::Normal(deviation) => {
                columns.for_each(|(it, at)| *it = key.normal(at) * deviation);
            }
        }
    }
}

impl fmt::Display for Initial {
    /// The text that [`Initial::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Initial::Zeros => f.write_str("zeros"),
            Initial::Checkpoint => f.write_str("checkpoint"),
            Initial::Constant(value) => write!(f, "constant:{value}"),
            Initial::Uniform(bound) => write!(f, "uniform:{bound}"),
            Initial::Normal(deviation) => write!(f, "normal:{deviation}"),
        }
    }
}

/// Refusal of the text of first values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidInitial(String);

impl fmt::Display for InvalidInitial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected =
            "expected zeros, constant:VALUE, uniform:BOUND, normal:DEVIATION or checkpoint";
        write!(f, "first values '{}', {expected}", self.0)
    }
}

impl std::error::Error for InvalidInitial {}
