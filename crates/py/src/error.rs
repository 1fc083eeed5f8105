//! Errors as Python exceptions, one line with the hint at its end, and warnings.

use pyo3::import_exception;
use pyo3::prelude::*;
use thinwire_wire::Hint;

import_exception!(thinwire.errors, Error);
import_exception!(thinwire.errors, InvalidError);
import_exception!(thinwire.errors, NoRankError);
import_exception!(thinwire.errors, PeerError);

/// Warns through Python's `warnings`, so that filters apply.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    py.import("warnings")?.call_method1("warn", (text,)).map(drop)
}

/// The reason of a failed call, on its way to Python.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A mistake of the caller.
    #[error("{0}")]
    Invalid(String),
    /// The group has ended.
    #[error("{0}")]
    Peer(String),
    /// The process is not one of the ranks.
    #[error("{0}")]
    NoRank(String),
}

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Failure {
        Failure::Invalid(text.into())
    }
}

/// Returns the text of an error, with its hint.
fn words(error: &dyn Hint) -> String {
    match error.hint() {
        Some(hint) => format!("{error} (hint: {hint})"),
        None => error.to_string(),
    }
}

impl From<thinwire_collective::Error> for Failure {
    fn from(error: thinwire_collective::Error) -> Failure {
        match error.kind() {
            thinwire_collective::Kind::Invalid => Failure::Invalid(words(&error)),
            _ => Failure::Peer(words(&error)),
        }
    }
}

impl From<thinwire_sync::Error> for Failure {
    fn from(error: thinwire_sync::Error) -> Failure {
        match error {
            thinwire_sync::Error::Collective(error) => error.into(),
            thinwire_sync::Error::Invalid(text) => Failure::Invalid(text),
            other => Failure::Peer(words(&other)),
        }
    }
}

impl From<thinwire_job::Error> for Failure {
    fn from(error: thinwire_job::Error) -> Failure {
        if error.kind == thinwire_job::Kind::NoRank {
            return Failure::NoRank(error.to_string());
        }
        match error.link() {
            Some(_) => Failure::Peer(words(&error)),
            None => Failure::Invalid(words(&error)),
        }
    }
}

impl From<thinwire_server::Error> for Failure {
    fn from(error: thinwire_server::Error) -> Failure {
        use thinwire_server::Kind::{Invalid, Job, Refused, Snapshot};
        match error.kind() {
            Job(thinwire_job::Kind::Link(_)) => Failure::Peer(words(&error)),
            Job(_) | Invalid | Refused | Snapshot => Failure::Invalid(words(&error)),
            _ => Failure::Peer(words(&error)),
        }
    }
}

impl From<thinwire_codec::Error> for Failure {
    fn from(error: thinwire_codec::Error) -> Failure {
        Failure::Invalid(error.to_string())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Invalid(text) => InvalidError::new_err(text),
            Failure::Peer(text) => PeerError::new_err(text),
            Failure::NoRank(text) => NoRankError::new_err(text),
        }
    }
}
