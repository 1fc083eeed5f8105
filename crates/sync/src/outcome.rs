//! The outcome of a step, the same on all ranks.

/// The end of a step.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks have the averages.
    Averaged,
    /// Some rank had a gradient that is not finite. No rank has changed anything: the optimiser
    /// must not step.
    Skipped,
}
