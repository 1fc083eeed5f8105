//! Errors of models.

use thinwire_wire::Hint;

/// The sort of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Operands that an operator cannot take.
    Operands,
    /// Sizes of a model that contradict each other.
    Sizes,
    /// A name that no model has.
    Name,
    /// A layout that a tensor cannot have, or that cannot become another.
    Layout,
    /// A file that is no model.
    File,
    /// A gradient that is asked for and does not exist.
    Gradient,
}

/// A mistake and where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error of a kind, in one line.
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

    /// Prefixes the message with the place of the mistake.
    #[must_use]
    pub fn at(self, place: &str) -> Error {
        Error { message: format!("{place}: {}", self.message), ..self }
    }

    /// The sort of mistake.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}
