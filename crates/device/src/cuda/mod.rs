//! Kernels of `thinwire-codec`'s codecs in CUDA C, and the library that compiles them.
//!
//! Law: if all values are finite, a kernel gives the bits of the Rust codec.
#![allow(unsafe_code)]

pub mod arguments;
mod context;
mod device;
pub mod driver;
pub mod entropy;
mod flight;
pub mod kernel;
mod launch;
pub mod library;
mod memory;
pub mod nvrtc;
mod open;
mod owner;
mod pinned;
#[cfg(feature = "simulated")]
pub mod simulated;
#[cfg(feature = "simulated")]
pub mod trial;

pub use memory::Kept;
pub use open::Unavailable;
pub use owner::{Allocator, Cuda};
