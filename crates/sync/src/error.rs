//! Errors of synchronisation.

use std::fmt;

use thinwire_wire::Rank;

/// An error of the synchronisation; all but [`Error::Invalid`] end it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed: a peer is lost, silent or wrong.
    Collective(thinwire_collective::Error),
    /// Ranks disagree on what they are doing.
    Disagreement {
        /// The name of the fact: "model".
        about: String,
        /// The value of this rank.
        mine: String,
        /// The rank with another value.
        rank: Rank,
        /// The value of that rank.
        theirs: String,
    },
    /// The caller's mistake.
    Invalid(String),
    /// The communication thread is gone.
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

    /// Returns a hint for the user, in one line.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Error::Collective(error) => error.hint(),
            Error::Disagreement { .. } => {
                Some("start every rank with the same options and the same data")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Collective(error) => error.fmt(f),
            Error::Disagreement { about, mine, rank, theirs } => {
                write!(f, "ranks disagree on {about}: this rank has {mine}, {rank} has {theirs}")
            }
            Error::Invalid(detail) => f.write_str(detail),
            Error::Stopped => f.write_str("the communication thread has stopped"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Collective(error) => Some(error),
            _ => None,
        }
    }
}

impl From<thinwire_collective::Error> for Error {
    fn from(error: thinwire_collective::Error) -> Error {
        Error::Collective(error)
    }
}
