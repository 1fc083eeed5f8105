//! Errors in texts of optimisers.

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No rule has this name.
    Rule,
    /// The rule has no setting of this name, or the text has it twice.
    Setting,
    /// The value of a setting is missing, not a number, or out of range.
    Value,
}

/// Refusal of a text, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: Kind,
    context: String,
}

impl Error {
    pub(crate) fn new(kind: Kind, context: String) -> Error {
        Error { kind, context }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}
