//! What can go wrong in synchronisation.

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
        /// About what: "model".
        about: String,
        /// What this rank says.
        mine: String,
        /// Who says something else.
        rank: Rank,
        /// What that rank says.
        theirs: String,
    },
    /// The caller's mistake.
    Invalid(String),
    /// The communication thread is gone.
    Stopped,
}

impl Error {
    /// The same error, with the step of training that it happened in.
    pub(crate) fn in_step(self, step: u64) -> Error {
        match self {
            Error::Collective(error) => Error::Collective(error.in_step(step)),
            other => other,
        }
    }

    /// What the user may do about it, in one line.
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
