//! Refusals of requests, and their reasons in one line.

use std::fmt;

use thinwire_member::Id;

/// Request of a client, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// A push.
    Push(u64),
    /// A pull.
    Pull(u64),
}

/// Reason for which a request is refused; it may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The server is not the primary of the shard.
    Elsewhere {
        /// The primary, if it is known.
        primary: Option<Id>,
    },
    /// The client is no worker, or not yet.
    Unknown,
    /// A push before this one is missing, or still waits.
    Early {
        /// Number of the push that is next.
        expected: u64,
    },
    /// Too many requests wait.
    Busy {
        /// Number of requests that wait.
        waiting: usize,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Elsewhere { primary: Some(id) } => write!(f, "the primary is server {id}"),
            Reason::Elsewhere { primary: None } => f.write_str("the primary is not known here"),
            Reason::Unknown => f.write_str("the client is no worker of the job"),
            Reason::Early { expected } => write!(f, "the next push is {expected}"),
            Reason::Busy { waiting } => write!(f, "{waiting} requests wait already"),
        }
    }
}
