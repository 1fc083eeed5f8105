//! Errors of training.
//!
//! One line each, with the values on both sides, and where there is something to do about it a
//! hint. Errors of the exchange between ranks are kept as the source.

use std::path::Path;

use thinwire_checkpoint::Kind as OfCheckpoint;
use thinwire_wire::Hint;

/// The sort of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something that cannot be.
    Invalid,
    /// The training text is missing, empty or too small.
    Data,
    /// A checkpoint is missing, damaged or of another model, or cannot be written.
    Checkpoint,
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

    /// Whether a rank was lost, or the group has ended with it.
    fn is_of_lost_rank(&self) -> bool {
        use thinwire_collective::Kind;
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let group = error.downcast_ref::<thinwire_collective::Error>();
            let ends = |kind| matches!(kind, Kind::Peer | Kind::Timeout | Kind::Stopped);
            if group.is_some_and(|error| ends(error.kind())) {
                return true;
            }
            cause = error.source();
        }
        false
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

impl From<thinwire_checkpoint::Error> for Error {
    fn from(error: thinwire_checkpoint::Error) -> Error {
        let (context, hint) = (error.to_string(), error.hint().map(str::to_owned));
        Error { kind: Kind::Checkpoint, context, hint, source: Some(Box::new(error)) }
    }
}

impl From<Error> for thinwire_checkpoint::Error {
    fn from(error: Error) -> thinwire_checkpoint::Error {
        let kind = if error.is_of_lost_rank() { OfCheckpoint::Lost } else { OfCheckpoint::Failed };
        let mut wrapped = thinwire_checkpoint::Error::new(kind, error.to_string());
        if let Some(hint) = error.hint() {
            wrapped = wrapped.with_hint(hint);
        }
        wrapped.with_source(error)
    }
}
