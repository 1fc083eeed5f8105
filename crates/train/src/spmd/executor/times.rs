//! When a rank did what in a step.

use std::time::Instant;

use thinwire_program::pipeline::Pass;

/// One pass, as it went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Went {
    /// The pass.
    pub pass: Pass,
    /// When it began and ended, in seconds; see [`Times`].
    pub start_s: f64,
    /// When it ended, in seconds.
    pub end_s: f64,
    /// Seconds of it in which the rank waited for others.
    pub waited_s: f64,
}

/// A step, as it went. Times are seconds since all ranks had told each other of their gradients, before
/// parameters changed: a micro-batch number that comes to all of them at about the same time, whatever their
/// clocks say. Times before it are negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The passes, in their order.
    pub passes: Vec<Went>,
    /// When the rank was done with what it updates.
    pub end_s: f64,
}

/// A step under way.
#[derive(Debug)]
pub(super) struct Watch {
    passes: Vec<(Pass, [Instant; 2], f64)>,
    told: Instant,
}

impl Watch {
    /// Before the first pass.
    pub fn start() -> Watch {
        Watch { passes: Vec::new(), told: Instant::now() }
    }

    /// Takes note of a pass that began then, ends now, and has waited so long.
    pub fn pass(&mut self, pass: Pass, begun: Instant, waited_s: f64) {
        self.passes.push((pass, [begun, Instant::now()], waited_s));
    }

    /// All ranks have told each other of their gradients.
    pub fn told(&mut self) {
        self.told = Instant::now();
    }

    /// After the last pass, and after parameters have changed.
    pub fn end(self) -> Times {
        let since = |at: Instant| match at.checked_duration_since(self.told) {
            Some(after) => after.as_secs_f64(),
            None => -self.told.duration_since(at).as_secs_f64(),
        };
        let went = |(pass, [start, end], waited_s): &(Pass, [Instant; 2], f64)| Went {
            pass: *pass,
            start_s: since(*start),
            end_s: since(*end),
            waited_s: *waited_s,
        };
        Times { passes: self.passes.iter().map(went).collect(), end_s: since(Instant::now()) }
    }
}
