//! When a rank did what in a step.

use std::time::Instant;

use crate::spmd::order::Turn;

/// One turn, as it went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Went {
    /// Which.
    pub turn: Turn,
    /// When it began and ended, in seconds; see [`Times`].
    pub start_s: f64,
    /// The same of its end.
    pub end_s: f64,
    /// Seconds of it in which the rank waited for others.
    pub waited_s: f64,
}

/// A step, as it went. Times are seconds since all ranks had told each other of their gradients, before
/// parameters changed: a moment that comes to all of them at about the same time, whatever their
/// clocks say. What was before it is negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The turns, in their order.
    pub turns: Vec<Went>,
    /// When the rank was done with what it updates.
    pub end_s: f64,
}

/// A step under way.
#[derive(Debug)]
pub(super) struct Watch {
    turns: Vec<(Turn, [Instant; 2], f64)>,
    told: Instant,
}

impl Watch {
    /// Before the first turn.
    pub fn start() -> Watch {
        Watch { turns: Vec::new(), told: Instant::now() }
    }

    /// Takes note of a turn that began then, ends now, and has waited so long.
    pub fn turn(&mut self, turn: Turn, begun: Instant, waited_s: f64) {
        self.turns.push((turn, [begun, Instant::now()], waited_s));
    }

    /// All ranks have told each other of their gradients.
    pub fn told(&mut self) {
        self.told = Instant::now();
    }

    /// After the last turn, and after parameters have changed.
    pub fn end(self) -> Times {
        let since = |at: Instant| match at.checked_duration_since(self.told) {
            Some(after) => after.as_secs_f64(),
            None => -self.told.duration_since(at).as_secs_f64(),
        };
        let went = |(turn, [start, end], waited_s): &(Turn, [Instant; 2], f64)| Went {
            turn: *turn,
            start_s: since(*start),
            end_s: since(*end),
            waited_s: *waited_s,
        };
        Times { turns: self.turns.iter().map(went).collect(), end_s: since(Instant::now()) }
    }
}
