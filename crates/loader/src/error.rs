//! Errors of the loader.

use thinwire_graph::Position;

/// Kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Options contradict each other, or the graph and the features do.
    Options,
    /// A batch could not be sampled.
    Sampling,
    /// Rows could not be read.
    Rows,
    /// The loader has ended after an error.
    Ended,
}

/// Error in one line, with the position of its batch.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
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
        let source = source.into();
        let context = format!("batch of pass {pass}, step {step}: {source}");
        Error { kind, context, source: Some(source) }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}
