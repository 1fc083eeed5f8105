//! Processors that encode gradients, and the memory that they work on.
//!
//! With the feature `cuda` there are kernels that give the bits of `thinwire-codec`.
#![deny(unsafe_code)]

#[cfg(all(feature = "cuda", unix))]
pub mod cuda;
