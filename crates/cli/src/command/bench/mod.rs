//! `thinwire bench`: measures this machine and this network, and the part of their speed that thinwire uses.
//!
//! Every figure is printed with a limit measured in the same run: a copy of the same memory, or a plain TCP
//! stream between the same two ranks.

pub(crate) mod codec;
mod collective;
mod link;
pub(crate) mod plain;
mod rates;

use anyhow::Result;
use clap::Subcommand;

/// Measure codecs, links and collectives against their limits.
#[derive(Subcommand)]
pub enum What {
    /// Measure the speed of encoding and decoding, and of a plain copy
    Codec(codec::Args),
    /// Measure a link between two ranks, and a plain TCP stream
    Link(link::Args),
    /// Measure all-reduce, and the time of its bytes in a plain TCP stream
    Collective(collective::Args),
}

/// Runs a benchmark.
///
/// # Errors
/// If ranks cannot be started, or the connection between them is lost.
pub fn run(what: &What) -> Result<u8> {
    match what {
        What::Codec(args) => codec::run(args),
        What::Link(args) => link::run(args),
        What::Collective(args) => collective::run(args),
    }
}
