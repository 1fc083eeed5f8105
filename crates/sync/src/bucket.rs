//! Buckets: which gradients travel together, and what is kept of each bucket from step to step.

pub(crate) mod checkpoint;
mod fault;
pub(crate) mod feedback;
pub(crate) mod layout;
pub(crate) mod momentum;
pub(crate) mod state;
