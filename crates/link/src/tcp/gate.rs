//! Priority on the wire: bulk frames give way to all others.
//!
//! Everything that a rank sends shares one link with the network, so a message that somebody waits
//! for would share it with gradients that nobody waits for yet. Bulk is held back while anything else
//! is queued, to whatever peer, and only while that moves: a peer that does not read yet may be
//! waiting for this very bulk.
//!
//! Bytes in the buffers of sockets cannot be overtaken, and are not kept few: with a small
//! `TCP_NOTSENT_LOWAT` sockets ran dry whenever computing kept this thread from its turn.

use std::time::{Duration, Instant};

/// Time without progress of other frames after which bulk goes on.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whether bulk gives gate.
#[derive(Debug, Default)]
pub struct BulkGate {
    /// Time since which another frame is queued and has not moved.
    stuck: Option<Instant>,
}

impl BulkGate {
    /// Records whether anything but bulk is queued now, and whether some of it has moved or has just
    /// been queued.
    pub fn record(&mut self, queued: bool, moved: bool, now: Instant) {
        self.stuck = match self.stuck {
            _ if !queued => None,
            Some(since) if !moved => Some(since),
            _ => Some(now),
        };
    }

    /// Returns the time that bulk has to wait from now on if nothing moves; zero if the gate is open.
    pub fn wait(&self, now: Instant) -> Duration {
        self.stuck.map_or(Duration::ZERO, |since| (since + PATIENCE).saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_waits_while_something_else_moves_and_not_for_what_is_stuck() {
        let (mut gate, start) = (BulkGate::default(), Instant::now());
        let after = |part: u32| start + PATIENCE * part / 4;
        assert!(gate.wait(start).is_zero());
        gate.record(true, false, start);
        assert_eq!(gate.wait(start), PATIENCE);
        gate.record(true, true, after(3));
        assert_eq!(gate.wait(after(3)), PATIENCE);
        gate.record(true, false, after(5));
        assert_eq!(gate.wait(after(5)), PATIENCE / 2);
        gate.record(true, false, after(7));
        assert!(gate.wait(after(7)).is_zero());
        gate.record(true, true, after(8));
        assert_eq!(gate.wait(after(8)), PATIENCE);
        gate.record(false, true, after(9));
        assert!(gate.wait(after(9)).is_zero());
    }
}
