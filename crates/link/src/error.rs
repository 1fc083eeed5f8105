//! Errors between ranks.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use thinwire_wire::{Hint, Rank};

/// The kind of an [`Error`]. The order is part of the store's protocol: append new kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kind {
    /// A peer is gone or silent; `rank` names it.
    PeerLost,
    /// A peer has left normally while others wait for it; `rank` names it.
    Left,
    /// A peer reports that the group has ended; `rank` names the rank it blames, if any.
    Poisoned {
        /// Rank that sent the report.
        by: Rank,
    },
    /// A rank has ended before all ranks had met; `rank` names it.
    Absent,
    /// Another thread of the caller has cancelled the call.
    Cancelled,
    /// Something took too long.
    Timeout,
    /// The other side does not prove the same job token.
    TokenMismatch,
    /// The other side speaks another protocol version.
    VersionMismatch,
    /// Two ranks disagree about the world they are in.
    WorldMismatch,
    /// Ranks of another job meet at this address.
    JobMismatch,
    /// Two processes claim the same rank.
    RankTaken,
    /// An address does not answer.
    Unreachable,
    /// An address is in use by another process.
    AddressInUse,
    /// Bytes that no peer of this version writes.
    Corrupt,
    /// A limit on sizes or counts is exceeded.
    Limit,
    /// The caller's mistake.
    Invalid,
    /// The operating system refuses.
    Io,
}

/// An error between ranks, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{}{context}", subject(*kind, *rank))]
pub struct Error {
    /// The kind of error.
    pub kind: Kind,
    /// The rank that the error is about: the one that was lost, even if another rank reported it.
    pub rank: Option<Rank>,
    /// The operation that failed, with both values if two values differ.
    pub context: String,
    source: Option<io::Error>,
}

impl Error {
    /// Returns an error of `kind`.
    pub fn new(kind: Kind, context: impl Into<String>) -> Error {
        Error { kind, rank: None, context: context.into(), source: None }
    }

    /// Returns the error that the peer `rank` is lost.
    pub fn lost(rank: Rank, context: impl Into<String>) -> Error {
        Error::new(Kind::PeerLost, context).with_rank(rank)
    }

    /// Returns the error that the peer `rank` has left while others wait for it.
    pub fn left(rank: Rank) -> Error {
        Error::new(Kind::Left, "it left before this was done").with_rank(rank)
    }

    /// Returns the error for a refusal of the operating system.
    pub fn io(context: impl fmt::Display, source: io::Error) -> Error {
        Error::new(Kind::Io, format!("{context}: {}", plain(&source))).with_source(source)
    }

    /// Returns the error for an I/O error of a connection, with its own message.
    pub(crate) fn broken(source: io::Error) -> Error {
        Error::new(Kind::Io, plain(&source)).with_source(source)
    }

    /// Returns the error for an I/O error of the stream between this rank and `peer`.
    pub(crate) fn of_peer(peer: Rank, source: io::Error) -> Error {
        match source.kind() {
            // Sockets do not look at what they carry: this is about shared memory.
            io::ErrorKind::InvalidData => {
                Error::broken(source).of(Kind::Corrupt).by(peer).with_rank(peer)
            }
            _ => Error::broken(source),
        }
    }

    /// Sets the rank that the error is about.
    #[must_use]
    pub fn with_rank(self, rank: Rank) -> Error {
        Error { rank: Some(rank), ..self }
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(self, source: io::Error) -> Error {
        Error { source: Some(source), ..self }
    }

    /// Prefixes the message with its subject, `who`.
    pub(crate) fn by(self, who: impl fmt::Display) -> Error {
        Error { context: format!("{who} {}", self.context), ..self }
    }

    /// Sets the kind.
    pub(crate) fn of(self, kind: Kind) -> Error {
        Error { kind, ..self }
    }

    /// Prefixes the message with the other end of a connection, such as "the server at HOST:PORT". An I/O
    /// error or a timeout becomes [`Kind::Unreachable`].
    #[must_use]
    pub fn of_connection(self, to: impl fmt::Display) -> Error {
        let kind = match self.kind {
            Kind::Io | Kind::Timeout => Kind::Unreachable,
            kind => kind,
        };
        self.by(to).of(kind)
    }

    /// Returns a copy without the cause.
    #[must_use]
    pub fn repeat(&self) -> Error {
        Error { kind: self.kind, rank: self.rank, context: self.context.clone(), source: None }
    }
}

/// The operating system has a limit of its own, and its own message for it.
const NO_DESCRIPTORS: &str = "too many open files";
const NO_DESCRIPTORS_OF_SYSTEM: &str = "too many open files in system";

impl Hint for Error {
    fn hint(&self) -> Option<&str> {
        let is_about = |text: &str| self.context.contains(text);
        let is_scarce = is_about(NO_DESCRIPTORS) && !is_about(NO_DESCRIPTORS_OF_SYSTEM);
        Some(match self.kind {
            _ if is_scarce || self.kind == Kind::Limit && is_about(" open files ") => {
                "raise the limit where the job is started: ulimit -n, or LimitNOFILE of a service"
            }
            Kind::TokenMismatch => "start every rank of one job with the same token",
            Kind::VersionMismatch => "run the same version of thinwire on every host",
            Kind::WorldMismatch => {
                "start every rank of one job with the same world size; if an earlier job used the same rendezvous, use a fresh one"
            }
            Kind::JobMismatch => {
                "let every job meet at a port of its own: set MASTER_PORT, or end the other job"
            }
            Kind::RankTaken => {
                "give every process its own rank; if an earlier job used the same rendezvous, use a fresh one"
            }
            Kind::Left => {
                "give every rank the same number of steps: a rank with fewer batches ends before the others"
            }
            Kind::Absent => "fix the cause, and start all ranks again",
            Kind::Unreachable => {
                "check that the address is right, that rank 0 runs, and that no firewall blocks it"
            }
            Kind::AddressInUse => {
                "another process listens at this address: choose another port, or end that process"
            }
            _ => return None,
        })
    }
}

/// Returns the message of an I/O error without the operating system's number.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string().to_lowercase();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Returns the beginning of a message about a rank.
fn subject(kind: Kind, rank: Option<Rank>) -> String {
    match (kind, rank) {
        (Kind::PeerLost | Kind::Left, Some(rank)) => format!("lost {rank}: "),
        (Kind::Absent, Some(rank)) => format!("{rank} does not come: "),
        _ => String::new(),
    }
}

/// Returns the error for received bytes that are not a message of the expected kind.
pub fn unreadable(expected: &str, bytes: &[u8], why: &dyn fmt::Display) -> Error {
    let length = bytes.len();
    Error::new(Kind::Corrupt, format!("sent {length} bytes, expected a {expected}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_and_name_the_rank() {
        let error = Error::lost(Rank(2), "connection closed without a goodbye");
        assert_eq!(error.to_string(), "lost rank 2: connection closed without a goodbye");
        let error = Error::left(Rank(1));
        assert_eq!(error.to_string(), "lost rank 1: it left before this was done");
        assert!(error.hint().is_some_and(|hint| hint.contains("fewer batches")));
        let error = Error::io("cannot bind", io::Error::from_raw_os_error(98));
        assert_eq!(error.to_string(), "cannot bind: address already in use");
    }

    #[test]
    fn who_has_no_descriptors_is_told_to_raise_the_limit_of_the_process() {
        let [process, system] = [24, 23].map(|number| {
            let error = io::Error::from_raw_os_error(number);
            Error::io("this rank could not accept a connection", error).of(Kind::Timeout)
        });
        assert!(process.hint().is_some_and(|hint| hint.contains("ulimit -n")));
        assert_eq!(system.hint(), None, "{system}");
    }
}
