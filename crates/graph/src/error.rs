//! Errors of graphs.

use std::fmt;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A list has the wrong length, or lengths contradict each other.
    Length,
    /// There is no such vertex.
    Vertex,
    /// A value is outside of what it may be.
    Value,
}

/// Error in one line.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
}

impl Error {
    pub(crate) fn length(context: String) -> Error {
        Error { kind: Kind::Length, context }
    }

    pub(crate) fn vertex(place: &str, vertex: u64, vertices: u32) -> Error {
        let context = format!("{place} has vertex {vertex}, expected vertices of 0..{vertices}");
        Error { kind: Kind::Vertex, context }
    }

    pub(crate) fn value(context: String) -> Error {
        Error { kind: Kind::Value, context }
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

impl std::error::Error for Error {}
