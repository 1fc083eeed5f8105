//! Errors of plans and of their files.

use thinwire_wire::Hint;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A plan file is invalid.
    File,
    /// A plan cannot be run, or is for another model.
    Invalid,
}

/// An error in one line, possibly with a hint.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Error {
    pub(crate) fn file(message: impl Into<String>) -> Error {
        Error { kind: Kind::File, message: message.into(), hint: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error { kind: Kind::Invalid, message: message.into(), hint: None }
    }

    #[must_use]
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}
