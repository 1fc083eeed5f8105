//! Errors of collectives: the caller's mistakes, lost peers, and corrupt bytes.

use std::fmt;
use std::sync::Arc;

use thinwire_wire::{Hint, Rank};

/// An error of a collective operation. Every kind but [`Kind::Invalid`] ends the group.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    operation: &'static str,
    step: Option<u64>,
    rank: Option<Rank>,
    detail: String,
    source: Option<Arc<thinwire_link::Error>>,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The caller's mistake; the group is as it was.
    Invalid,
    /// A peer is gone or the link to it has failed.
    Peer,
    /// Nothing was received for too long.
    Timeout,
    /// A peer sent bytes that a correct peer never sends.
    Corrupt,
    /// This rank has ended the group.
    Stopped,
}

/// Steps from here on are counts of exchanges, not steps of training: errors do not name them.
pub(crate) const COUNTS: u64 = 1 << 62;

/// Counts from here on are those of calls among some of the ranks.
pub(crate) const SUBGROUPS: u64 = 1 << 55;

/// The operation of a group that has no run: its ranks compute.
pub(crate) const BETWEEN: &str = "between exchanges";

/// Steps from here on are calls of plain operations.
pub(crate) const CALLS: u64 = 1 << 63;

/// Steps from here on are messages between two ranks.
pub(crate) const MESSAGES: u64 = 3 << 62;

/// Returns whether a step is a plain collective, which every rank calls in the same order.
pub(crate) fn is_call(step: u64) -> bool {
    (CALLS..MESSAGES).contains(&step)
}

/// Returns whether an address is that of a step of training.
pub(crate) fn is_training(step: u64) -> bool {
    step < COUNTS
}

/// Returns the count of an exchange that is counted by itself.
pub(crate) fn counted(step: u64) -> Option<u64> {
    (COUNTS..CALLS).contains(&step).then(|| step - COUNTS)
}

/// Describes that a peer is at another step of training.
pub(crate) fn different_steps(from: Rank, theirs: u64, mine: u64) -> String {
    format!("ranks are at different steps: {from} at step {theirs}, this rank at step {mine}")
}

/// Messages have numbers below this: the room between `MESSAGES` and a count of 32 bits.
pub(crate) const NUMBERS: u32 = 1 << 30;

impl Error {
    fn new(kind: Kind, operation: &'static str, detail: String) -> Error {
        Error { kind, operation, step: None, rank: None, detail, source: None }
    }

    pub(crate) fn invalid(operation: &'static str, detail: String) -> Error {
        Error::new(Kind::Invalid, operation, detail)
    }

    pub(crate) fn stopped(reason: String) -> Error {
        Error::new(Kind::Stopped, "abort", reason)
    }

    pub(crate) fn corrupt(
        operation: &'static str,
        step: Option<u64>,
        rank: Option<Rank>,
        detail: String,
    ) -> Error {
        Error { step, rank, ..Error::new(Kind::Corrupt, operation, detail) }
    }

    pub(crate) fn timeout(
        operation: &'static str,
        step: u64,
        rank: Option<Rank>,
        detail: String,
    ) -> Error {
        Error { step: Some(step), rank, ..Error::new(Kind::Timeout, operation, detail) }
    }

    pub(crate) fn link(
        operation: &'static str,
        step: Option<u64>,
        error: thinwire_link::Error,
    ) -> Error {
        let (rank, detail) = (error.rank, error.to_string());
        let source = Some(Arc::new(error));
        Error { step, rank, source, ..Error::new(Kind::Peer, operation, detail) }
    }

    /// Adds this step of training to the error, unless the error has a step already. Code between the
    /// collectives of a step does not know the step.
    #[must_use]
    pub fn in_step(self, step: u64) -> Error {
        let step = self.step.filter(|step| *step < COUNTS).unwrap_or(step);
        Error { step: Some(step), ..self }
    }

    /// Returns the error as it is sent to the peers: with the rank that is to blame, and without its place, since each
    /// peer adds its own.
    pub(crate) fn for_peers(&self) -> thinwire_link::Error {
        let kind = match self.kind {
            Kind::Timeout => thinwire_link::Kind::Timeout,
            Kind::Corrupt => thinwire_link::Kind::Corrupt,
            _ => thinwire_link::Kind::Invalid,
        };
        let error = match &self.source {
            Some(source) => thinwire_link::Error::new(source.kind, source.context.clone()),
            None => thinwire_link::Error::new(kind, self.detail.clone()),
        };
        match self.rank {
            Some(rank) => error.with_rank(rank),
            None => error,
        }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the peer that the error is about, if there is one.
    pub fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> &'static str {
        self.operation
    }
}

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        self.source.as_ref().and_then(|error| error.hint())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Stopped {
            return f.write_str(&self.detail);
        }
        let within = if self.operation == BETWEEN { "" } else { "in " };
        write!(f, "{} ({within}{}", self.detail, self.operation)?;
        match self.step {
            Some(step) if step < COUNTS => write!(f, " of step {step})"),
            _ => write!(f, ")"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error.as_ref() as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_step_of_training_is_not_called_one() {
        let address = crate::Address::counted(7, 1, "a message between stages");
        let error = Error::corrupt(address.operation, Some(address.step), None, "short".to_owned());
        assert_eq!(error.to_string(), "short (in a message between stages)");
        let error = Error::corrupt(BETWEEN, Some(7), None, "short".to_owned());
        assert_eq!(error.to_string(), "short (between exchanges of step 7)");
    }

    #[test]
    fn the_place_of_an_error_is_said_once_on_all_ranks() {
        let mine = Error::timeout("all_reduce", 2, Some(Rank(1)), "nothing came".to_owned());
        for operation in ["all_reduce", "all_gather"] {
            let theirs = Error::link(operation, Some(2), mine.for_peers()).to_string();
            assert_eq!(theirs, format!("nothing came (in {operation} of step 2)"));
        }
    }

    #[test]
    fn a_step_is_said_where_none_was() {
        let call = Error::timeout("all_gather", CALLS | 7, None, "nothing came".to_owned());
        assert_eq!(call.to_string(), "nothing came (in all_gather)");
        assert_eq!(call.in_step(3).to_string(), "nothing came (in all_gather of step 3)");
        let bucket = Error::timeout("all_reduce", 2, None, "nothing came".to_owned());
        assert_eq!(bucket.in_step(3).to_string(), "nothing came (in all_reduce of step 2)");
    }
}
