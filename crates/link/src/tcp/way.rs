//! Who goes first on the wire.
//!
//! What a rank sends to several peers shares its one link with the network, and so a message that
//! somebody waits for would share it with gradients that nobody waits for yet. So bulk gives way
//! while anything else is queued, to whatever peer. It does so only while that moves: whoever does
//! not read yet may be waiting for this very bulk.
//!
//! What sockets hold cannot be overtaken, and is not held back: told to hold little of what has not
//! left (`TCP_NOTSENT_LOWAT`), they ran dry whenever computing kept this thread from its turn.

use std::time::{Duration, Instant};

/// Bulk goes on when nothing else has moved for so long.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whether bulk gives way.
#[derive(Debug, Default)]
pub struct Way {
    /// Since when something else is queued and has not moved.
    stuck: Option<Instant>,
}

impl Way {
    /// Takes note of how things stand now: whether anything but bulk is queued, and whether some of it
    /// has moved, or has just come.
    pub fn note(&mut self, queued: bool, moved: bool, now: Instant) {
        self.stuck = match self.stuck {
            _ if !queued => None,
            Some(since) if !moved => Some(since),
            _ => Some(now),
        };
    }

    /// How long bulk has to wait from now on, if nothing moves; zero if it need not.
    pub fn wait(&self, now: Instant) -> Duration {
        self.stuck.map_or(Duration::ZERO, |since| (since + PATIENCE).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_waits_while_something_else_moves_and_not_for_what_is_stuck() {
        let (mut way, start) = (Way::default(), Instant::now());
        let after = |part: u32| start + PATIENCE * part / 4;
        assert!(way.wait(start).is_zero());
        way.note(true, false, start);
        assert_eq!(way.wait(start), PATIENCE);
        way.note(true, true, after(3));
        assert_eq!(way.wait(after(3)), PATIENCE);
        way.note(true, false, after(5));
        assert_eq!(way.wait(after(5)), PATIENCE / 2);
        way.note(true, false, after(7));
        assert!(way.wait(after(7)).is_zero());
        way.note(true, true, after(8));
        assert_eq!(way.wait(after(8)), PATIENCE);
        way.note(false, true, after(9));
        assert!(way.wait(after(9)).is_zero());
    }
}
