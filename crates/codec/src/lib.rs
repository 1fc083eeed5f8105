//! Gradients to bytes and back.
