//! Errors of models.

use thinwire_wire::Hint;

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Operands that an operator cannot take.
    Operands,
    /// Sizes of a model that contradict each other.
    Sizes,
    /// A name that is not a model's.
    Name,
    /// A layout that a tensor cannot have, or that cannot be converted to another.
    Layout,
    /// A file that is not a model.
    File,
    /// A gradient that is needed but does not exist.
    Gradient,
}

/// An error and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Error {
    /// Returns an error of a kind, in one line.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None }
    }

    /// Adds a hint: a remedy in one line.
    #[must_use]
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// Adds a hint, unless there is one.
    #[must_use]
    pub(crate) fn or_hint(self, hint: &str) -> Error {
        match self.hint {
            Some(_) => self,
            None => self.with_hint(hint),
        }
    }

    /// Puts the place of the error in front of the message.
    #[must_use]
    pub fn at(self, place: &str) -> Error {
        Error { message: format!("{place}: {}", self.message), ..self }
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
