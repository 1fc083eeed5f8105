//! Errors of graphs.

use std::io;
use std::path::Path;

use thinwire_wire::Hint;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A list has the wrong length, or lengths contradict each other.
    Length,
    /// A vertex does not exist.
    Vertex,
    /// A file does not have the expected format.
    Format,
    /// A value is out of range.
    Value,
    /// A file cannot be read or written.
    Io,
    /// A file was changed while it was open.
    Changed,
}

/// Error in one line.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: Kind,
    context: String,
    hint: Option<&'static str>,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn length(context: String) -> Error {
        Error { kind: Kind::Length, context, hint: None, source: None }
    }

    pub(crate) fn vertex(place: &str, vertex: u64, vertices: u32) -> Error {
        let context = format!("{place} has vertex {vertex}, expected vertices of 0..{vertices}");
        Error { kind: Kind::Vertex, context, hint: None, source: None }
    }

    pub(crate) fn format(context: String) -> Error {
        Error { kind: Kind::Format, context, hint: None, source: None }
    }

    pub(crate) fn value(context: String) -> Error {
        Error { kind: Kind::Value, context, hint: None, source: None }
    }

    pub(crate) fn changed(context: String) -> Error {
        Error { kind: Kind::Changed, context, hint: None, source: None }
    }

    pub(crate) fn weight(place: &str, weight: &str) -> Error {
        Error::value(format!("{place} {weight}, expected a finite number of at least 0"))
    }

    pub(crate) fn io(context: &str, error: io::Error) -> Error {
        let context = format!("{context}: {error}");
        Error { kind: Kind::Io, context, hint: None, source: Some(error) }
    }

    /// Adds a remedy.
    pub(crate) fn with_hint(self, hint: &'static str) -> Error {
        Error { hint: Some(hint), ..self }
    }

    /// Puts the path of a file in front of the message.
    pub(crate) fn of_file(self, path: &Path) -> Error {
        Error { context: format!("{}: {}", path.display(), self.context), ..self }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.hint
    }
}
