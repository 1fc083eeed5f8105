//! Signs of life on a connection that was dialled.
//!
//! An empty message is answered by an empty one, after all messages before it were handled. Law: a
//! connection on which no byte moves for [`Deadline::Silence`], though an answer is due, has failed;
//! one that is only slow has not.

use std::collections::VecDeque;
use std::time::Instant;

use crate::Deadline;

/// The questions that a dialled node has been asked.
#[derive(Debug)]
pub struct KeepAlive {
    /// The askers of the questions that are not answered yet, in order.
    asked: VecDeque<Asker>,
    /// Time of the last question or answer.
    last: Instant,
    /// Time of the last byte, or of the first question since.
    moved: Instant,
    /// Whether questions are asked, and silence counts.
    is_kept: bool,
}

/// The side that has asked for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The endpoint itself, which wants a sign of life.
    Endpoint,
    /// The endpoint's node, which waits for the answer.
    Node,
}

impl KeepAlive {
    /// Returns the state of a connection that was opened at time `now`, and fails if it is silent for too
    /// long.
    pub fn new(now: Instant) -> KeepAlive {
        KeepAlive { asked: VecDeque::new(), last: now, moved: now, is_kept: true }
    }

    /// Returns the state of a connection that was opened at time `now`, and may be silent for any time.
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

    /// Records that an answer has come. Returns whether the node has asked for it.
    pub fn answered(&mut self, now: Instant) -> bool {
        self.last = now;
        self.asked.pop_front() == Some(Asker::Node)
    }

    /// Returns whether a question is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.is_kept && self.asked.is_empty() && now >= self.last + Deadline::Idle.duration()
    }

    /// Returns whether the other side has been silent for too long.
    pub fn has_failed(&self, now: Instant) -> bool {
        self.is_kept && !self.asked.is_empty() && now >= self.moved + Deadline::Silence.duration()
    }

    /// Returns the time at which the next question is due or, if an answer is awaited, the time at which
    /// the connection will have failed.
    pub fn deadline(&self) -> Option<Instant> {
        let next = match self.asked.is_empty() {
            true => self.last + Deadline::Idle.duration(),
            false => self.moved + Deadline::Silence.duration(),
        };
        self.is_kept.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const IDLE: Duration = Deadline::Idle.duration();
    const SILENCE: Duration = Deadline::Silence.duration();

    #[test]
    fn silence_fails_a_connection_and_slowness_does_not() {
        let now = Instant::now();
        let mut alive = KeepAlive::new(now);
        assert!(!alive.is_due(now) && alive.is_due(now + IDLE));
        assert_eq!(alive.deadline(), Some(now + IDLE));
        // Nothing was asked for long: the answer has its full time.
        let asked = now + 5 * SILENCE;
        alive.ask(Asker::Endpoint, asked);
        assert!(!alive.has_failed(asked) && alive.has_failed(asked + SILENCE));
        alive.moved(asked + SILENCE / 2);
        alive.ask(Asker::Node, asked + SILENCE / 2);
        assert!(!alive.has_failed(asked + SILENCE));
        assert_eq!(alive.deadline(), Some(asked + SILENCE / 2 + SILENCE));
        assert!(!alive.answered(asked + SILENCE) && alive.answered(asked + SILENCE));
        assert!(!alive.answered(asked + SILENCE), "an answer to nothing");
        assert!(!alive.has_failed(asked + 9 * SILENCE));
        let mut other = KeepAlive::of_silent(now);
        other.ask(Asker::Node, now);
        assert!(!other.has_failed(now + 9 * SILENCE) && other.deadline().is_none());
    }
}
