//! The address of a message.

use std::fmt;

/// Which message this is: messages are matched by tag, never by arrival order.
///
/// Between two ranks in one epoch a tag is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The training step, or the number of the collective call.
    pub step: u64,
    /// The tensor or bucket within the step.
    pub tensor: u32,
    /// The message within the tensor's schedule, as the schedule numbers them.
    pub message: u32,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} tensor {} message {}", self.step, self.tensor, self.message)
    }
}
