//! Processors that encode gradients, and the memory that they work on.
//!
//! A gradient lies in host memory or in the memory of a [`Device`]. [`Work`] encodes a range of it, decodes
//! into it, or adds to it; encodings are [`HostBytes`], which the link reads and writes. Work on host
//! memory is done before [`submit`] returns. A device may finish its work later, on memory that the work
//! keeps alive.
//!
//! The feature `cuda` adds kernels for NVIDIA's processors.
//!
//! Laws: a device gives the bytes, residuals and sums that the CPU gives, bit for bit. Work on overlapping
//! ranges of an allocation is carried out in the order of submission, other work in any order.
//!
//! ```
//! use thinwire_codec::{Choice, Finite, Write};
//! use thinwire_device::{Decoding, Encoding, HostBytes, Operand, Submission, Work, submit};
//! use thinwire_wire::random::Key;
//!
//! let Choice::Bytes(codec) = Choice::parse("int8").unwrap() else { unreachable!() };
//! let (mut values, mut decoded) = ([0.5, -1.0, 0.25], [0.0; 3]);
//! let mut done = |work| match submit(work, std::task::Waker::noop()) {
//!     Submission::Done(done) => done,
//!     Submission::Pending(_) => unreachable!("work on host memory is done at once"),
//! };
//! let encoded = done(Work::Encode(Encoding {
//!     codec: &codec,
//!     values: Operand::Host(&mut values),
//!     residual: None,
//!     key: Key { seed: 1, step: 0, tensor: 0 },
//!     to: HostBytes::new(codec.encoded_len(3)),
//! }));
//! assert_eq!(encoded.finite, Finite::Yes);
//! let decoding = Decoding {
//!     codec: &codec,
//!     from: encoded.bytes,
//!     to: Operand::Host(&mut decoded),
//!     write: Write::Set,
//!     canonicalise: Default::default(),
//! };
//! assert!(done(Work::Decode(decoding)).failure.is_none());
//! assert!((decoded[1] + 1.0).abs() < 0.01);
//! ```
#![deny(unsafe_code)]

mod bytes;
#[cfg(all(feature = "cuda", unix))]
pub mod cuda;
mod region;
mod submit;
mod work;

pub use bytes::{Block, HostBytes};
pub use region::{Allocation, Operand, Region, Source, Values};
pub use submit::{Batch, compute, submit};
pub use work::{
    Canonicalise, Change, Decoding, Device, Done, Encoding, FactorStep, Factoring, Failure,
    Pending, Submission, Work,
};
