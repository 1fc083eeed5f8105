//! Time limits that nodes set for each other, in one table.

use std::time::Duration;

/// Time limit that a node sets for another one.
///
/// Limits that belong to a single mechanism, such as a lease or a launcher's grace, are defined with
/// that mechanism; the heartbeat timeout between ranks is an option of each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// One attempt to reach an address, handshake included. More attempts follow.
    Dial,
    /// The handshake of an accepted connection, while places for unauthenticated peers are free.
    Handshake,
    /// Silence on a connection on which no answer is due, after which the peer is asked for a sign of
    /// life. The limit is long, because hundreds of nodes on one machine may ask each other.
    Idle,
    /// Silence of a peer from which an answer is due, after which its connection counts as broken.
    Silence,
    /// The answer to a request that takes no work, such as a welcome or a message of the coordinator.
    Reply,
    /// The end of a process that leaves in good order: its last messages, and the answers to them.
    Shutdown,
}

impl Deadline {
    /// Returns the time limit.
    pub const fn duration(self) -> Duration {
        match self {
            Deadline::Dial | Deadline::Shutdown => Duration::from_secs(2),
            Deadline::Handshake | Deadline::Idle => Duration::from_secs(5),
            Deadline::Silence | Deadline::Reply => Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_asked_before_it_is_given_up() {
        assert!(2 * Deadline::Idle.duration() <= Deadline::Silence.duration());
        assert!(Deadline::Dial.duration() < Deadline::Handshake.duration());
    }
}
