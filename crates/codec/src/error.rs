//! What can be wrong with a codec's name or with encoded bytes.

use std::fmt;

/// The sort of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No codec has this name.
    Unknown,
    /// A codec's parameter is missing, superfluous or out of range.
    Parameter,
    /// The encoded bytes are not as many as the values ask for.
    Length,
    /// The encoded bytes are as many as they should be, and impossible.
    Corrupt,
    /// The file of a codec's text cannot be read, or has changed.
    File,
    /// A codec's text makes no sense, or does not do what it claims.
    Program,
}

/// A refused name or encoding, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    context: String,
    excerpt: Option<String>,
}

impl Error {
    pub(crate) fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), excerpt: None }
    }

    /// The same with the line of a codec's text that it is about.
    pub(crate) fn with_excerpt(self, excerpt: String) -> Error {
        Error { excerpt: Some(excerpt), ..self }
    }

    /// Refuses `encoded` unless it is `expected` bytes long.
    ///
    /// # Errors
    /// If it is not; the error names both lengths.
    pub fn check_length(
        codec: &dyn fmt::Display,
        encoded: &[u8],
        expected: usize,
        elements: usize,
    ) -> Result<(), Error> {
        if encoded.len() == expected {
            return Ok(());
        }
        let context = format!(
            "length mismatch in {codec}: found {} bytes, expected {expected} for {elements} elements",
            encoded.len()
        );
        Err(Error::new(Kind::Length, context))
    }

    /// The line of a codec's text that it is about, and below it a caret where it is.
    pub fn excerpt(&self) -> Option<&str> {
        self.excerpt.as_deref()
    }

    /// What sort of error this is.
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
