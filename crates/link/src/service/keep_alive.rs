//! Signs of life on a connection that was dialled.
//!
//! An empty message is answered by an empty one, after all messages before it were handled. Law: a connection on
//! which no byte moves for [`SILENCE`], though an answer is due, has failed; one that is only slow has not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time without a question after which one is asked. Hundreds of services on one machine ask each other.
const IDLE: Duration = Duration::from_secs(5);
/// Time without a byte in either direction after which an answer is no longer waited for.
pub const SILENCE: Duration = Duration::from_secs(10);

/// What a service that was dialled has been asked.
#[derive(Debug)]
pub struct KeepAlive {
    /// Who has asked the questions that are not answered yet, in their order.
    asked: VecDeque<Asker>,
    /// Time of the last question or answer.
    last: Instant,
    /// Time of the last byte, or of the first question since.
    moved: Instant,
    /// Whether questions are asked, and silence counts.
    is_kept: bool,
}

/// Who has asked for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The server, for a sign of life.
    Server,
    /// Its service, which waits for the answer.
    Service,
}

impl KeepAlive {
    /// A connection that was opened at time `now`, on which silence counts.
    pub fn new(now: Instant) -> KeepAlive {
        KeepAlive { asked: VecDeque::new(), last: now, moved: now, is_kept: true }
    }

    /// A connection that was opened at time `now`, and may be silent.
    pub fn of_silent(now: Instant) -> KeepAlive {
        KeepAlive { is_kept: false, ..KeepAlive::new(now) }
    }

    /// Notes that bytes were read or written.
    pub fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// Notes that an empty message is sent at time `now`.
    pub fn ask(&mut self, asker: Asker, now: Instant) {
        if self.asked.is_empty() {
            self.moved = now;
        }
        self.asked.push_back(asker);
        self.last = now;
    }

    /// Takes an answer. Returns whether the service waits for it.
    pub fn answered(&mut self, now: Instant) -> bool {
        self.last = now;
        self.asked.pop_front() == Some(Asker::Service)
    }

    /// Returns whether a question is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.is_kept && self.asked.is_empty() && now >= self.last + IDLE
    }

    /// Returns whether the other side has been silent for too long.
    pub fn has_failed(&self, now: Instant) -> bool {
        self.is_kept && !self.asked.is_empty() && now >= self.moved + SILENCE
    }

    /// Returns the time at which a question is due, or the connection has failed.
    pub fn deadline(&self) -> Option<Instant> {
        let next = match self.asked.is_empty() {
            true => self.last + IDLE,
            false => self.moved + SILENCE,
        };
        self.is_kept.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_fails_a_connection_and_slowness_does_not() {
        let now = Instant::now();
        let mut alive = KeepAlive::new(now);
        assert!(!alive.is_due(now) && alive.is_due(now + IDLE));
        assert_eq!(alive.deadline(), Some(now + IDLE));
        // Nothing was asked for long: the answer has its full time.
        let asked = now + 5 * SILENCE;
        alive.ask(Asker::Server, asked);
        assert!(!alive.has_failed(asked) && alive.has_failed(asked + SILENCE));
        alive.moved(asked + SILENCE / 2);
        alive.ask(Asker::Service, asked + SILENCE / 2);
        assert!(!alive.has_failed(asked + SILENCE));
        assert_eq!(alive.deadline(), Some(asked + SILENCE / 2 + SILENCE));
        assert!(!alive.answered(asked + SILENCE) && alive.answered(asked + SILENCE));
        assert!(!alive.answered(asked + SILENCE), "an answer to nothing");
        assert!(!alive.has_failed(asked + 9 * SILENCE));
        let mut other = KeepAlive::of_silent(now);
        other.ask(Asker::Service, now);
        assert!(!other.has_failed(now + 9 * SILENCE) && other.deadline().is_none());
    }
}
