//! Errors of checkpoints and of the folders or buckets that contain them.

use std::error::Error as StdError;
use std::io;
use std::path::Path;

use thinwire_wire::Hint;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The caller asked for something impossible, or a setting is missing or wrong.
    Invalid,
    /// There is no checkpoint, or its folder or bucket cannot be reached.
    Missing,
    /// A checkpoint is damaged, or belongs to another model.
    Damaged,
    /// The operating system or an object store refused to read or write.
    Io,
    /// A folder or bucket is temporarily unavailable, such as a network folder that may be mounted
    /// again.
    Away,
    /// Another training writes its checkpoints to the folder or bucket.
    Taken,
    /// A later epoch of the job writes the checkpoints, so this one must not.
    Superseded,
    /// Another rank failed, and has the reason.
    Echo,
    /// A rank was lost; the source has the reason.
    Lost,
    /// A rank could not provide its state; the source has the reason.
    Failed,
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
    /// quote names and answers from outside and must be one line.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        let message = message.into().replace(|letter: char| letter.is_control(), " ");
        Error { kind, message, hint: None, source: None }
    }

    pub(crate) fn io(doing: &str, path: &Path, source: io::Error) -> Error {
        // A full disk has the same remedy wherever it is noticed.
        let is_full =
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let hint = is_full.then(|| "free some space there, or write to another place".to_owned());
        let message = format!("cannot {doing} {}: {source}", path.display());
        Error { hint, ..Error::new(Kind::Io, message).with_source(source) }
    }

    pub(crate) fn away(why: impl ToString) -> Error {
        Error::new(Kind::Away, why.to_string())
    }

    /// Adds a remedy in one line.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error { source: Some(source.into()), ..self }
    }

    /// Puts the name of the operation in front of the message.
    #[must_use]
    pub fn context(self, doing: &str) -> Error {
        Error { message: format!("{doing}: {}", self.message), ..self }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether a folder or file was missing.
    pub(crate) fn is_of_missing_file(&self) -> bool {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(self);
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>();
            if io.is_some_and(|io| io.kind() == io::ErrorKind::NotFound) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Returns the message, with the remedy in parentheses.
    pub(crate) fn with_remedy(&self) -> String {
        let hint = self.hint.as_ref().map_or(String::new(), |hint| format!(" (hint: {hint})"));
        format!("{}{hint}", self.without_number())
    }

    /// Returns the message without the operating system's error number, which adds nothing to its words.
    pub(crate) fn without_number(&self) -> String {
        match self
            .message
            .split_once(" (os error ")
            .map(|(start, rest)| (start, rest.split_once(')')))
        {
            Some((start, Some((_, rest)))) => format!("{start}{rest}"),
            _ => self.message.clone(),
        }
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}
