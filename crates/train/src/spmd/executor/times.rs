//! Times of a rank's passes in a step.

use std::time::Instant;

use thinwire_program::pipeline::Pass;

/// One pass with its times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Went {
    /// The pass.
    pub pass: Pass,
    /// Time at which the pass began, in seconds; see [`Times`].
    pub start_s: f64,
    /// Time at which the pass ended, in seconds.
    pub end_s: f64,
    /// Seconds of the pass in which the rank waited for others.
    pub waited_s: f64,
}

/// Times of a step, in seconds relative to one moment: when all ranks had received each other's values
/// of the step, before parameters changed. All ranks reach this moment at about the same time, even if
/// their clocks differ. Times before it are negative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// The passes, in order.
    pub passes: Vec<Went>,
    /// Time at which the rank had finished its updates.
    pub end_s: f64,
}

/// A step under way.
#[derive(Debug)]
pub(super) struct Watch {
    passes: Vec<(Pass, [Instant; 2], f64)>,
    told: Instant,
}

impl Watch {
    /// Starts a step, before the first pass.
    pub fn start() -> Watch {
        Watch { passes: Vec::new(), told: Instant::now() }
    }

    /// Records a pass that began at `begun`, ends now, and has waited for `waited_s`.
    pub fn pass(&mut self, pass: Pass, begun: Instant, waited_s: f64) {
        self.passes.push((pass, [begun, Instant::now()], waited_s));
    }

    /// Records the moment at which all ranks have received each other's values.
    pub fn told(&mut self) {
        self.told = Instant::now();
    }

    /// Ends a step, after the last pass and after parameters have changed.
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
