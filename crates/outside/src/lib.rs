//! Laws of every parser of bytes from outside.
//!
//! Each [`Target`] is a function of bytes that panics if its law does not hold. The targets in
//! `fuzz/` feed it mutated bytes; the tests of this crate feed it the seeds in `fuzz/seeds`, so
//! that both keep up with the parsers. Checksums, lengths and keys are corrected on the way, since
//! random bytes would not get past them.
#![forbid(unsafe_code)]

#[cfg(feature = "train")]
mod checkpoint;
mod codec;
mod draw;
mod frames;
mod graph;
mod handshake;
mod header;
mod language;
mod launcher;
mod model;
mod names;
mod onnx;
mod plan;
#[cfg(feature = "train")]
mod program;
pub mod protobuf;
mod state;
mod store;

#[cfg(feature = "train")]
pub use checkpoint::checkpoint;
pub use codec::{decode, encode};
pub use frames::frames;
pub use handshake::handshake;
pub use header::header;
pub use language::language;
pub use launcher::launcher;
pub use model::model;
pub use names::{choice, names};
pub use onnx::onnx;
pub use plan::{BATCH, MODEL, SEQUENCE, cluster, plan};
#[cfg(feature = "train")]
pub use program::run as program;
pub use state::state;
pub use store::store;

/// A reader of bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its fuzz target and of its folder of seeds.
    pub name: &'static str,
    /// Panics if the law does not hold for these bytes.
    pub run: fn(&[u8]),
}

/// All of them, in the order of `fuzz/README.md`.
pub const TARGETS: &[Target] = &[
    Target { name: "header", run: header },
    Target { name: "decode", run: decode },
    Target { name: "encode", run: encode },
    Target { name: "choice", run: choice },
    Target { name: "names", run: names },
    Target { name: "language", run: language },
    Target { name: "onnx", run: onnx },
    Target { name: "model", run: model },
    Target { name: "plan", run: plan },
    Target { name: "cluster", run: cluster },
    Target { name: "launcher", run: launcher },
    Target { name: "state", run: state },
    Target { name: "handshake", run: handshake },
    Target { name: "store", run: store },
    Target { name: "frames", run: frames },
    #[cfg(feature = "train")]
    Target { name: "checkpoint", run: checkpoint },
    #[cfg(feature = "train")]
    Target { name: "program", run: program },
];
