//! Buckets: which gradients travel together, and what is kept of each bucket from step to step.

pub(crate) mod checkpoint;
pub(crate) mod feedback;
pub(crate) mod layout;
pub(crate) mod momentum;
pub(crate) mod state;
