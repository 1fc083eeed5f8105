//! Buckets: gradients that travel together, and the state of each bucket from step to step.

pub(crate) mod checkpoint;
mod fault;
pub(crate) mod feedback;
pub(crate) mod layout;
pub(crate) mod momentum;
pub(crate) mod state;
