//! Refusals of requests, with one-line reasons.

use std::fmt;

use serde::{Deserialize, Serialize};
use thinwire_member::Id;

use crate::clocks::number;

/// Push or pull of a client, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Request {
    /// A push.
    Push(u64),
    /// A pull.
    Pull(u64),
}

/// Worker for which others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slowest {
    /// The worker.
    pub worker: Id,
    /// Step that the worker has reached.
    #[serde(deserialize_with = "number")]
    pub step: u64,
}

impl fmt::Display for Slowest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it waits for worker {}, which is at step {}", self.worker, self.step)
    }
}

/// Reason why a server refuses a request for now; the client may repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// The server is not the primary of the shard.
    Elsewhere {
        /// Primary of the shard, if the server knows it.
        primary: Option<Id>,
    },
    /// The client is not in the list of workers; it may be added later.
    Unknown,
    /// An earlier push of the worker is missing or still waits.
    Early {
        /// Number of the push that is expected next.
        expected: u64,
    },
    /// Too many requests are waiting.
    Busy {
        /// Number of waiting requests.
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
