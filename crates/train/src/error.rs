//! Errors of training.
//!
//! One line each, with the values on both sides, and where there is something to do about it a
//! hint. Errors of the exchange between ranks are kept as the source.

use std::path::Path;

use thinwire_wire::Hint;

/// The sort of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something that cannot be.
    Invalid,
    /// The training text is missing, empty or too small.
    Data,
    /// A checkpoint is damaged or of another model.
    Checkpoint,
    /// There is no checkpoint, or its place cannot be reached.
    Missing,
    /// The operating system refused to read or write.
    Io,
    /// The exchange of gradients failed; the source says how.
    Exchange,
}

/// An error: its kind, one line of text, and perhaps a hint and a cause.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: Kind,
    context: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error without a hint.
    pub fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), hint: None, source: None }
    }

    /// The failure of an exchange.
    pub fn exchange(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let source = source.into();
        let context = source.to_string();
        Error { kind: Kind::Exchange, context, hint: None, source: Some(source) }
    }

    /// Returns the error with advice on what to do.
    pub fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// Sort of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn io(doing: &str, path: &Path, source: std::io::Error) -> Error {
        let context = format!("cannot {doing} {}: {source}", path.display());
        Error { kind: Kind::Io, context, hint: None, source: Some(Box::new(source)) }
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<thinwire_program::Error> for Error {
    fn from(error: thinwire_program::Error) -> Error {
        let hint = error.hint().map(str::to_owned);
        Error { hint, ..Error::new(Kind::Invalid, error.to_string()) }
    }
}

impl From<thinwire_server::Error> for Error {
    fn from(error: thinwire_server::Error) -> Error {
        let hint = error.hint().map(str::to_owned);
        Error { hint, ..Error::new(Kind::Invalid, error.to_string()) }
    }
}
