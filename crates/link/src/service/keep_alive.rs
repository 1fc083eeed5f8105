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
    /// Questions that are not answered yet, in their order, and whether this server's service asked.
    asked: VecDeque<bool>,
    /// Time of the last question or answer.
    last: Instant,
    /// Time of the last byte, or of the first question since.
    moved: Instant,
    /// Whether questions are asked, and silence counts.
    is_kept: bool,
}

impl KeepAlive {
    /// A connection that was opened at time `now`, on which silence counts if `is_kept`.
    pub fn new(now: Instant, is_kept: bool) -> KeepAlive {
        KeepAlive { asked: VecDeque::new(), last: now, moved: now, is_kept }
    }

    /// Notes that bytes were read or written.
    pub fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// Notes that an empty message is sent at time `now`.
    pub fn ask(&mut self, is_for_service: bool, now: Instant) {
        if self.asked.is_empty() {
            self.moved = now;
        }
        self.asked.push_back(is_for_service);
        self.last = now;
    }

    /// Takes an answer. Returns whether the service waits for it.
    pub fn answered(&mut self, now: Instant) -> bool {
        self.last = now;
        self.asked.pop_front().unwrap_or(false)
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
        let mut alive = KeepAlive::new(now, true);
        assert!(!alive.is_due(now) && alive.is_due(now + IDLE));
        assert_eq!(alive.deadline(), Some(now + IDLE));
        // Nothing was asked for long: the answer has its full time.
        let asked = now + 5 * SILENCE;
        alive.ask(false, asked);
        assert!(!alive.has_failed(asked) && alive.has_failed(asked + SILENCE));
        alive.moved(asked + SILENCE / 2);
        alive.ask(true, asked + SILENCE / 2);
        assert!(!alive.has_failed(asked + SILENCE));
        assert_eq!(alive.deadline(), Some(asked + SILENCE / 2 + SILENCE));
        assert!(!alive.answered(asked + SILENCE) && alive.answered(asked + SILENCE));
        assert!(!alive.answered(asked + SILENCE), "an answer to nothing");
        assert!(!alive.has_failed(asked + 9 * SILENCE));
        let mut other = KeepAlive::new(now, false);
        other.ask(true, now);
        assert!(!other.has_failed(now + 9 * SILENCE) && other.deadline().is_none());
    }
}
