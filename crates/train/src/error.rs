//! Errors of training.
//!
//! Each error is one line that names the value found and the value expected, with a hint if there is a
//! remedy. An error of the exchange between ranks is kept as the source.

use std::path::Path;

use thinwire_checkpoint::Kind as OfCheckpoint;
use thinwire_wire::Hint;

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The caller requested something impossible.
    Invalid,
    /// The training text is missing, empty or too small.
    Data,
    /// A checkpoint is missing, is damaged, belongs to another model, or cannot be written.
    Checkpoint,
    /// The operating system refused to read or write.
    Io,
    /// The exchange between ranks, with servers or with the coordinator failed; the source has the reason.
    Exchange,
    /// Code of the caller failed, such as an observer; the source has the reason.
    Caller,
}

/// An error: its kind, one line of text, and possibly a hint and a cause.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: Kind,
    context: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Returns an error without a hint.
    pub fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), hint: None, source: None }
    }

    /// Returns the error for a failed exchange.
    pub fn exchange(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let source = source.into();
        let context = source.to_string();
        Error { kind: Kind::Exchange, context, hint: None, source: Some(source) }
    }

    /// Returns the error with a hint.
    pub fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the error for a failure of the caller's code.
    pub fn caller(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error { kind: Kind::Caller, ..Error::exchange(source) }
    }

    /// Returns an error that `doing` failed, with this error as its cause.
    #[must_use]
    pub fn during(self, doing: impl Into<String>) -> Error {
        Error { kind: self.kind, context: doing.into(), hint: None, source: Some(Box::new(self)) }
    }

    /// Returns the error and its causes, in order.
    pub fn chain(&self) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
        let first: &(dyn std::error::Error + 'static) = self;
        std::iter::successors(Some(first), |error| error.source())
    }

    /// Returns the cause of the error if it is the loss of a peer, or the end of a group, after which an
    /// elastic job can continue.
    pub fn loss(&self) -> Option<&thinwire_collective::Error> {
        use thinwire_collective::Kind;
        let ends = |kind| matches!(kind, Kind::Peer | Kind::Timeout | Kind::Stopped);
        let groups = || self.chain().filter_map(|cause| cause.downcast_ref());
        let groups = || groups().filter(|it: &&thinwire_collective::Error| ends(it.kind()));
        groups().find(|error| error.rank().is_some()).or_else(|| groups().next())
    }

    pub(crate) fn io(doing: &str, path: &Path, source: std::io::Error) -> Error {
        let context = format!("cannot {doing} {}: {source}", path.display());
        Error { kind: Kind::Io, context, hint: None, source: Some(Box::new(source)) }
    }
}

/// Extension of results, so that their errors name the operation that failed.
pub(crate) trait During<T> {
    /// Adds the name of the operation to an error.
    fn during(self, doing: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<Error>> During<T> for Result<T, E> {
    fn during(self, doing: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| error.into().during(doing()))
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

macro_rules! of_exchange {
    ($($error:ty),+) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::exchange(error)
            }
        }
    )+};
}

of_exchange!(
    thinwire_collective::Error,
    thinwire_job::Error,
    thinwire_server::Error,
    thinwire_sync::Error
);

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
        let kind = error.loss().map_or(OfCheckpoint::Failed, |_| OfCheckpoint::Lost);
        let mut wrapped = thinwire_checkpoint::Error::new(kind, error.to_string());
        if let Some(hint) = error.hint() {
            wrapped = wrapped.with_hint(hint);
        }
        wrapped.with_source(error)
    }
}
