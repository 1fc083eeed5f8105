//! Kernels of `thinwire-codec`'s codecs in CUDA C, and the library that compiles them.
//!
//! Law: a kernel gives the bits of the Rust codec, wherever all values are finite.
#![allow(unsafe_code)]

pub mod arguments;
mod context;
mod device;
pub mod driver;
pub mod entropy;
pub mod kernel;
pub mod library;
pub mod nvrtc;
mod pinned;
#[cfg(feature = "simulated")]
pub mod simulated;

pub use device::{Cuda, Kept};
