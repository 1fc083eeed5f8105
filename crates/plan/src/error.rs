//! Errors of planning.

use thinwire_wire::Hint;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Invalid file: a cluster or a plan.
    File,
    /// Model, cluster and options contradict each other.
    Impossible,
    /// No plan fits the memory of the devices.
    Memory,
}

/// Error with its message in one line, and a hint.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Kind of error.
    pub kind: Kind,
    message: String,
    hint: Option<String>,
    pub(crate) too_large: Option<TooLarge>,
}

/// Memory and time of a set of plans, of which none was found to fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TooLarge {
    /// Memory that a device needs for the smallest plan that was found, in bytes.
    pub needed_bytes: f64,
    /// Lower bound on the memory that any plan needs, in bytes.
    pub least_bytes: f64,
    /// Lower bound on the step time of plans that fit, in seconds; infinite if none fits.
    pub bound_s: f64,
}

impl TooLarge {
    /// Returns the bounds for two sets of plans taken together.
    pub fn and(self, other: TooLarge) -> TooLarge {
        TooLarge {
            needed_bytes: self.needed_bytes.min(other.needed_bytes),
            least_bytes: self.least_bytes.min(other.least_bytes),
            bound_s: self.bound_s.min(other.bound_s),
        }
    }

    /// Returns whether some plan may fit.
    pub fn may_fit(&self) -> bool {
        self.bound_s.is_finite()
    }
}

impl Error {
    pub(crate) fn file(message: impl Into<String>) -> Error {
        Error::new(Kind::File, message)
    }

    pub(crate) fn impossible(message: impl Into<String>) -> Error {
        Error::new(Kind::Impossible, message)
    }

    /// Returns the error that no plan fits.
    pub(crate) fn memory(message: impl Into<String>, too_large: TooLarge) -> Error {
        Error { too_large: Some(too_large), ..Error::new(Kind::Memory, message) }
    }

    fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, too_large: None }
    }

    /// Returns the bytes of a device that the smallest plan needs; `None` unless the error is that no plan
    /// fits.
    pub fn needed_bytes(&self) -> Option<f64> {
        self.too_large.map(|all| all.needed_bytes)
    }

    /// Returns the error of a model's builder.
    pub fn from_model(error: &thinwire_model::Error) -> Error {
        let hint = error.hint().map(str::to_owned);
        Error { hint, ..Error::impossible(error.to_string()) }
    }

    #[must_use]
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<thinwire_program::Error> for Error {
    fn from(error: thinwire_program::Error) -> Error {
        let kind = match error.kind() {
            thinwire_program::ErrorKind::File => Kind::File,
            _ => Kind::Impossible,
        };
        Error { hint: error.hint().map(str::to_owned), ..Error::new(kind, error.to_string()) }
    }
}

/// Formats bytes with a unit and three digits.
pub(crate) fn size(bytes: f64) -> String {
    let kib = 1024.0;
    scaled(bytes, &[(kib * kib * kib, "GiB"), (kib * kib, "MiB"), (kib, "KiB"), (1.0, "B")])
}

/// Formats a number with three digits in the largest unit that it reaches, or in the smallest unit.
///
/// 999.6 would be printed as 1000, so the next unit begins slightly earlier. A number that would be printed
/// as 0.00 of the smallest unit, which sums of fractions may leave, is printed as 0.
pub(crate) fn scaled(value: f64, scales: &[(f64, &str)]) -> String {
    let smallest = &scales[scales.len() - 1];
    let fits = |(scale, _): &&(f64, &str)| value >= 0.9995 * scale;
    let (scale, unit) = scales.iter().find(fits).unwrap_or(smallest);
    let value = match value / scale {
        value if value.abs() < 0.005 => 0.0,
        value => value,
    };
    let decimals = match value {
        _ if value >= 99.95 || value.fract() == 0.0 && *unit == smallest.1 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_to_nothing_is_nothing() {
        let seconds = |value| scaled(value, &[(1e-6, "µs"), (1e-9, "ns")]);
        assert_eq!([seconds(1e-17), seconds(6e-12), seconds(0.0)], ["0 ns", "0.01 ns", "0 ns"]);
    }

    #[test]
    fn sizes_are_told_apart_however_small() {
        assert_eq!(
            [size(12.0), size(1024.0), size(16.0 * 1024.0), size(3.5e6), size(1.5e11)],
            ["12 B", "1.00 KiB", "16.0 KiB", "3.34 MiB", "140 GiB"]
        );
    }
}
