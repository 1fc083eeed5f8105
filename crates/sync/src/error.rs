//! Errors of synchronisation.

use thinwire_wire::{Hint, Rank};

/// An error of the synchronisation; all but [`Error::Invalid`] end it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed: a peer is lost, silent or wrong.
    #[error("{0}")]
    Collective(#[from] thinwire_collective::Error),
    /// Ranks disagree on what they are doing.
    #[error("ranks disagree on {about}: this rank has {mine}, {rank} has {theirs}")]
    Disagreement {
        /// The name of the fact, such as "model".
        about: String,
        /// The value of this rank.
        mine: String,
        /// The rank with another value.
        rank: Rank,
        /// The value of that rank.
        theirs: String,
    },
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// The communication thread is gone.
    #[error("the communication thread has stopped")]
    Stopped,
}

impl Error {
    /// Adds the step of training that the error happened in.
    pub(crate) fn in_step(self, step: u64) -> Error {
        match self {
            Error::Collective(error) => Error::Collective(error.in_step(step)),
            other => other,
        }
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        match self {
            Error::Collective(error) => error.hint(),
            Error::Disagreement { .. } => {
                Some("start every rank with the same options and the same data")
            }
            _ => None,
        }
    }
}
