//! Errors in texts of optimisers.

use std::fmt;

/// Sort of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No rule has this name.
    Rule,
    /// The rule has no setting of this name, or has it twice.
    Setting,
    /// The value of a setting is missing, not a number, or out of range.
    Value,
}

/// Refusal of a text, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    context: String,
}

impl Error {
    pub(crate) fn new(kind: Kind, context: String) -> Error {
        Error { kind, context }
    }

    /// Returns the sort of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for Error {}
