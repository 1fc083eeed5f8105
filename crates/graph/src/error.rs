//! Errors of graphs.

use std::fmt;
use std::io;
use std::path::Path;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A list has the wrong length, or lengths contradict each other.
    Length,
    /// There is no such vertex.
    Vertex,
    /// A file is not in the format it should have.
    Format,
    /// A value is outside of what it may be.
    Value,
    /// A file cannot be read or written.
    Io,
}

/// Error in one line.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn length(context: String) -> Error {
        Error { kind: Kind::Length, context, source: None }
    }

    pub(crate) fn vertex(place: &str, vertex: u64, vertices: u32) -> Error {
        let context = format!("{place} has vertex {vertex}, expected vertices of 0..{vertices}");
        Error { kind: Kind::Vertex, context, source: None }
    }

    pub(crate) fn format(context: String) -> Error {
        Error { kind: Kind::Format, context, source: None }
    }

    pub(crate) fn value(context: String) -> Error {
        Error { kind: Kind::Value, context, source: None }
    }

    pub(crate) fn io(context: &str, error: io::Error) -> Error {
        Error { kind: Kind::Io, context: format!("{context}: {error}"), source: Some(error) }
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}
