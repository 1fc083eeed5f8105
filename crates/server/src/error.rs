//! Errors of servers and their clients.

use std::error::Error as StdError;

use thinwire_wire::Hint;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Mistake of the caller: an invalid definition, table, row or length. Nothing was sent.
    Invalid,
    /// The coordinator or a server refuses a request, and would refuse it again.
    Refused,
    /// No progress within the timeout; the message names what is missing.
    Timeout,
    /// A shard has no replica left.
    Lost,
    /// Bytes that no peer of this version sends.
    Corrupt,
    /// The disk of spilled rows failed or is full.
    Disk,
    /// A snapshot or checkpoint is missing, is damaged, belongs to other tables, or cannot be made.
    Snapshot,
    /// The job or its connections failed; [`StdError::source`] has the cause.
    Job(thinwire_job::Kind),
}

/// An error in one line.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error from its kind and a message. Control characters become spaces, since the message may
    /// contain names from outside and must be one line.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: line(&message.into()), hint: None, source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(Kind::Invalid, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Error {
        Error::new(Kind::Corrupt, message)
    }

    /// Returns the error of a request that another process refuses with this text.
    pub(crate) fn refused(text: &str) -> Error {
        let refused = |text| Error::new(Kind::Refused, text);
        match text.split_once(HINT) {
            Some((text, hint)) => refused(text).with_hint(hint),
            None => refused(text),
        }
    }

    /// Adds a remedy in one line.
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

/// Separator between the text of a refusal and its hint, when a process sends both.
pub(crate) const HINT: &str = "; hint: ";

/// Returns a text without control characters, in one line.
pub(crate) fn line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

impl From<thinwire_checkpoint::Error> for Error {
    fn from(error: thinwire_checkpoint::Error) -> Error {
        let kind = match error.kind() {
            thinwire_checkpoint::Kind::Invalid => Kind::Invalid,
            thinwire_checkpoint::Kind::Io => Kind::Disk,
            _ => Kind::Snapshot,
        };
        let (message, hint) = (error.to_string(), error.hint().map(str::to_owned));
        Error { hint, source: Some(Box::new(error)), ..Error::new(kind, message) }
    }
}

impl From<thinwire_job::Error> for Error {
    fn from(error: thinwire_job::Error) -> Error {
        Error {
            kind: Kind::Job(error.kind),
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
            source: Some(Box::new(error)),
        }
    }
}

impl From<thinwire_link::Error> for Error {
    fn from(error: thinwire_link::Error) -> Error {
        thinwire_job::Error::from(error).into()
    }
}
