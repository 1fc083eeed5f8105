//! Errors that occur before the ranks of a job are connected.
//!
//! The message is one line that includes its causes. For errors between ranks, the link's error
//! ([`thinwire_link::Error`]) has the kind of error and the rank concerned.

use std::error::Error as StdError;
use std::fmt;

use thinwire_wire::{Hint, InvalidWorld};

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Explicit values or a launcher's variables are incomplete or contradict each other.
    Invalid,
    /// This process belongs to a job but is not one of its ranks: it is msrun's scheduler.
    NoRank,
    /// The coordinator of an elastic job refuses this process.
    Refused,
    /// The ranks cannot connect; [`Error::link`] has the details.
    Link(thinwire_link::Kind),
}

/// An error in one line, with a hint.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind of error.
    pub kind: Kind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error { kind: Kind::Invalid, message: message.into(), hint: None, source: None }
    }

    pub(crate) fn no_rank(message: impl Into<String>) -> Error {
        Error { kind: Kind::NoRank, ..Error::invalid(message) }
    }

    /// Returns the error of a process that the coordinator refuses, with the coordinator's reason in one
    /// line.
    pub(crate) fn refused(reason: impl Into<String>) -> Error {
        let error = Error { kind: Kind::Refused, ..Error::invalid(reason) };
        let hint = match &error.message {
            // The coordinator sends text alone, so these are parts of its sentences.
            reason if reason.contains(" disagree on ") => {
                "start this process with the same flags, model and data as the others"
            }
            reason if reason.contains(" has no servers") => {
                "start the coordinator with --servers, or a training with --mode server"
            }
            _ => return error,
        };
        error.with_hint(hint)
    }

    #[must_use]
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Error {
        Error { hint: Some(hint.into()), ..self }
    }

    /// Returns an error with this message and its cause.
    pub(crate) fn because(
        message: impl fmt::Display,
        source: impl StdError + Send + Sync + 'static,
    ) -> Error {
        let message = format!("{message}: {source}");
        Error { source: Some(Box::new(source)), ..Error::invalid(message) }
    }

    /// Returns the link error that kept the ranks from connecting, if there was one.
    pub fn link(&self) -> Option<&thinwire_link::Error> {
        self.source.as_ref().and_then(|source| source.downcast_ref())
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref().or_else(|| self.link().and_then(Hint::hint))
    }
}

impl From<thinwire_link::Error> for Error {
    fn from(error: thinwire_link::Error) -> Error {
        Error {
            kind: Kind::Link(error.kind),
            message: error.to_string(),
            hint: None,
            source: Some(Box::new(error)),
        }
    }
}

impl From<InvalidWorld> for Error {
    fn from(error: InvalidWorld) -> Error {
        Error { source: Some(Box::new(error)), ..Error::invalid(error.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_in_the_line_and_within_reach() {
        let error = Error::because("taking a place", thinwire_wire::World::new(2, 2).unwrap_err());
        let said = "taking a place: rank 2 is not in a world of 2, expected 0..=1";
        assert_eq!((error.to_string().as_str(), error.kind), (said, Kind::Invalid));
        assert!(error.source().is_some() && error.link().is_none());

        let link = thinwire_link::Error::new(thinwire_link::Kind::AddressInUse, "taken");
        let error = Error::from(link);
        assert_eq!(error.kind, Kind::Link(thinwire_link::Kind::AddressInUse));
        assert_eq!(error.hint(), error.link().and_then(Hint::hint));
        assert_eq!(error.with_hint("own").hint(), Some("own"));
    }
}
