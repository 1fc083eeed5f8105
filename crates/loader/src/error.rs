//! Errors of the loader.

use std::fmt;

use thinwire_graph::Position;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Options contradict each other, or graph and features do.
    Options,
    /// A batch could not be sampled.
    Sampling,
    /// Rows could not be read.
    Rows,
    /// The loader has ended after an error.
    Ended,
}

/// Error in one line, with the position of its batch.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn options(context: String) -> Error {
        Error { kind: Kind::Options, context, source: None }
    }

    pub(crate) fn ended() -> Error {
        let context = "the loader has ended, expected no call after an error".to_owned();
        Error { kind: Kind::Ended, context, source: None }
    }

    pub(crate) fn batch(
        kind: Kind,
        Position { pass, step }: Position,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let context = format!("batch of pass {pass}, step {step}");
        Error { kind, context, source: Some(source.into()) }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.context),
            None => f.write_str(&self.context),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
