//! Initial values of rows.

use std::fmt;

use thinwire_wire::random::Key;

/// Initial values of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Zeros.
    Zeros,
    /// This number in every place.
    Constant(f32),
    /// Uniformly distributed from minus this number to this number.
    Uniform(f32),
    /// Normally distributed with this standard deviation.
    Normal(f32),
    /// Values of the checkpoint with which the job begins. All rows count as written.
    Checkpoint,
}

impl Initial {
    /// Parses `zeros`, `constant:1`, `uniform:0.05`, `normal:0.01` or `checkpoint`.
    ///
    /// # Errors
    /// If the text has another form, or the number is negative or infinite.
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

    /// Writes the initial values of a row.
    pub(super) fn fill(self, row: u64, key: Key, values: &mut [f32]) {
        let width = values.len() as u64;
        let columns = values.iter_mut().zip(row * width..);
        match self {
            // Only reached by a peer's wrong bytes: with a checkpoint every row is written.
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
    /// Writes the text that [`Initial::parse`] reads.
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

/// Error for a text that does not name initial values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "initial values '{0}', expected zeros, constant:VALUE, uniform:BOUND, normal:DEVIATION or checkpoint"
)]
pub struct InvalidInitial(String);
