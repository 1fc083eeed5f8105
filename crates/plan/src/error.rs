//! Why there is no plan.

use std::fmt;

/// The sort of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A file is not what it should be: a cluster or a plan.
    File,
    /// The model and the cluster, or what was asked for, do not go together.
    Impossible,
    /// Nothing fits the memory of the devices.
    Memory,
}

/// What went wrong, in one line, and what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// The sort of error.
    pub kind: Kind,
    message: String,
    hint: Option<String>,
    least_bytes: Option<f64>,
}

impl Error {
    pub(crate) fn file(message: impl Into<String>) -> Error {
        Error::new(Kind::File, message)
    }

    pub(crate) fn impossible(message: impl Into<String>) -> Error {
        Error::new(Kind::Impossible, message)
    }

    /// Nothing fits, and the smallest plan needs so many bytes of a device.
    pub(crate) fn memory(message: impl Into<String>, least_bytes: f64) -> Error {
        Error { least_bytes: Some(least_bytes), ..Error::new(Kind::Memory, message) }
    }

    /// `what` needs more bytes of a device than it has.
    pub(crate) fn too_large(what: &str, needed: f64, has: f64) -> Error {
        let (found, expected) = (size(needed), size(has));
        Error::memory(
            format!("{what} needs {found} per device, expected at most {expected}"),
            needed,
        )
    }

    fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, least_bytes: None }
    }

    /// Bytes of a device that the smallest plan needs, where nothing fits.
    pub fn least_bytes(&self) -> Option<f64> {
        self.least_bytes
    }

    /// What the model's builder complains about.
    pub fn from_model(error: &thinwire_model::Error) -> Error {
        let hint = error.hint().map(str::to_owned);
        Error { hint, ..Error::impossible(error.to_string()) }
    }

    #[must_use]
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// What the user may do about it, in one line.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// Bytes with a unit and three digits.
pub(crate) fn size(bytes: f64) -> String {
    let kib = 1024.0;
    scaled(bytes, &[(kib * kib * kib, "GiB"), (kib * kib, "MiB"), (kib, "KiB"), (1.0, "B")])
}

/// A number with three digits in the largest of some units that it has one of, or else in the
/// smallest. 999.6 would be printed as 1000, so the next unit begins a little early.
pub(crate) fn scaled(value: f64, scales: &[(f64, &str)]) -> String {
    let smallest = &scales[scales.len() - 1];
    let fits = |(scale, _): &&(f64, &str)| value >= 0.9995 * scale;
    let (scale, unit) = scales.iter().find(fits).unwrap_or(smallest);
    let value = value / scale;
    let decimals = match value {
        _ if value >= 99.95 || value.fract() == 0.0 && *unit == smallest.1 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_apart_however_small() {
        let error = Error::too_large("the smallest plan", 3.5e6, 1024.0).to_string();
        assert_eq!(error, "the smallest plan needs 3.34 MiB per device, expected at most 1.00 KiB");
        assert_eq!(
            [size(12.0), size(16.0 * 1024.0), size(1.5e11)],
            ["12 B", "16.0 KiB", "140 GiB"]
        );
    }
}
