//! Errors of sources and caches.

use std::io;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A buffer, file or list has the wrong length.
    Length,
    /// The source has no such row.
    Row,
    /// There is no format with this name.
    Format,
    /// A file could not be read.
    Io,
    /// A remote source did not answer.
    Source,
}

/// Error in one line.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error of a source, for implementations of [`Source`](crate::Source).
    pub fn of_source(
        context: String,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error::because(Kind::Source, &context, source.into())
    }

    pub(crate) fn io(context: String, source: io::Error) -> Error {
        Error::because(Kind::Io, &context, source.into())
    }

    fn because(
        kind: Kind,
        context: &str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> Error {
        Error { kind, context: format!("{context}: {source}"), source: Some(source) }
    }

    pub(crate) fn row(row: u64, rows: u64) -> Error {
        let context = format!("row {row}, expected rows of 0..{rows}");
        Error { kind: Kind::Row, context, source: None }
    }

    pub(crate) fn length(context: String) -> Error {
        Error { kind: Kind::Length, context, source: None }
    }

    pub(crate) fn format(context: String) -> Error {
        Error { kind: Kind::Format, context, source: None }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// Checks that a buffer has `width` bytes for each of `rows` rows.
pub(crate) fn check_length(
    name: &str,
    found: usize,
    rows: usize,
    width: usize,
) -> Result<(), Error> {
    if rows.checked_mul(width) == Some(found) {
        return Ok(());
    }
    let context = format!("{name} of {found} bytes, expected {rows} rows of {width}");
    Err(Error::length(context))
}
