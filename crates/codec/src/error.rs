//! Errors of names of codecs, of texts of codecs, and of encoded bytes.

use std::fmt;

use crate::shown::short;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No codec has this name.
    Unknown,
    /// The parameter of a codec is missing, superfluous or out of range.
    Parameter,
    /// Encoded bytes do not have the length of an encoding of the values.
    Length,
    /// Encoded bytes have the right length, but are not a valid encoding.
    Corrupt,
    /// The file of a codec's text cannot be read, or has changed.
    File,
    /// The text of a codec is not valid, or the codec does not keep its claims.
    Program,
}

/// Refusal of a name, a text or an encoding, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: Kind,
    context: String,
    excerpt: Option<String>,
}

impl Error {
    pub(crate) fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), excerpt: None }
    }

    /// Returns the error about a parameter, `what`, that is not as `expected`.
    pub(crate) fn parameter(what: &str, parameter: Option<&str>, expected: &str) -> Error {
        let found = parameter.map_or("nothing".to_owned(), |found| format!("'{}'", short(found)));
        Error::new(Kind::Parameter, format!("{what} {found}, expected {expected}"))
    }

    /// Adds the line of a codec's text that the error is about.
    pub(crate) fn with_excerpt(self, excerpt: String) -> Error {
        Error { excerpt: Some(excerpt), ..self }
    }

    /// Checks that the encoding of `elements` values is `expected` bytes long.
    ///
    /// # Errors
    /// If `encoded` has another length; the error names both lengths.
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

    /// Checks that an encoding of `elements` values is as long as its first word states, or `shortest`
    /// bytes long if it has none.
    pub(crate) fn check_stated(
        codec: &dyn fmt::Display,
        encoded: &[u8],
        shortest: usize,
        elements: usize,
    ) -> Result<(), Error> {
        let length = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) as usize;
        let stated = encoded.first_chunk().map_or(shortest, length);
        Error::check_length(codec, encoded, stated, elements)
    }

    /// Returns the error about bytes of the stated length that do not encode `elements` values.
    pub(crate) fn no_encoding(codec: &dyn fmt::Display, encoded: &[u8], elements: usize) -> Error {
        let found = encoded.len();
        let text = format!("{found} bytes are no encoding of {elements} elements by {codec}");
        Error::new(Kind::Corrupt, text)
    }

    /// Returns the line of a codec's text that the error is about, and below it a caret at the place.
    pub fn excerpt(&self) -> Option<&str> {
        self.excerpt.as_deref()
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}
