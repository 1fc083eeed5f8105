//! Address of a message.

use std::fmt;

/// Address by which messages are matched, never by the order of arrival.
///
/// A tag is used once between two ranks in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// Training step, or number of the collective call.
    pub step: u64,
    /// Number of the tensor or bucket within the step.
    pub tensor: u32,
    /// Number of the message in the schedule of the tensor.
    pub message: u32,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} tensor {} message {}", self.step, self.tensor, self.message)
    }
}
