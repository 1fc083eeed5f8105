//! Laws of every parser of bytes from outside.
//!
//! Each [`Target`] is a function of bytes that panics if a law does not hold. The targets in `fuzz/`
//! feed mutated bytes to it, and the tests of this crate feed the seeds in `fuzz/seeds`, so that
//! both keep up with the parsers. Checksums, lengths and keys are corrected on the way, since random
//! bytes would not get past them.
#![forbid(unsafe_code)]

mod checkpoint;
mod codec;
mod coordinator;
mod draw;
mod frames;
mod graph;
mod handshake;
mod header;
mod images;
mod language;
mod launcher;
mod message;
mod model;
mod names;
mod onnx;
mod parts;
mod plan;
mod program;
pub mod protobuf;
mod roster;
mod rows;
mod service;
mod settings;
mod snapshot;
mod state;
mod store;
mod topology;

pub use checkpoint::checkpoint;
pub use codec::{decode, encode};
pub use coordinator::coordinator;
pub use frames::frames;
pub use handshake::handshake;
pub use header::header;
pub use images::images;
pub use language::language;
pub use launcher::launcher;
pub use message::message;
pub use model::model;
pub use names::{choice, names};
pub use onnx::onnx;
pub use parts::parts;
pub use plan::{BATCH, MODEL, SEQUENCE, cluster, plan};
pub use program::run as program;
pub use roster::roster;
pub use rows::{manifest, rows, shard, views};
pub use service::service;
pub use settings::settings;
pub use snapshot::snapshot;
pub use state::state;
pub use store::store;
pub use topology::{edges, topology};

/// Law of a parser of bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the fuzz target and of the folder of seeds.
    pub name: &'static str,
    /// Checks the law for some bytes, and panics if it does not hold.
    pub run: fn(&[u8]),
}

/// Every target, in the order of `fuzz/README.md`.
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
    Target { name: "service", run: service },
    Target { name: "store", run: store },
    Target { name: "frames", run: frames },
    Target { name: "checkpoint", run: checkpoint },
    Target { name: "program", run: program },
    Target { name: "roster", run: roster },
    Target { name: "message", run: message },
    Target { name: "coordinator", run: coordinator },
    Target { name: "snapshot", run: snapshot },
    Target { name: "rows", run: rows },
    Target { name: "views", run: views },
    Target { name: "manifest", run: manifest },
    Target { name: "shard", run: shard },
    Target { name: "settings", run: settings },
    Target { name: "edges", run: edges },
    Target { name: "topology", run: topology },
    Target { name: "parts", run: parts },
    Target { name: "images", run: images },
];
