//! `thinwire bench`: what this machine and this network give, and how much of it we use.
//!
//! Every figure stands beside a limit measured in the same run: a copy of the same memory, a plain
//! TCP stream between the same two ranks.

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
    /// Encode and decode, compared with a plain copy
    Codec(codec::Args),
    /// A link between two ranks, compared with a plain TCP stream
    Link(link::Args),
    /// All-reduce, compared with its bytes over the bandwidth of a plain TCP stream
    Collective(collective::Args),
}

/// Measures.
///
/// # Errors
/// If ranks cannot be started or lose each other.
pub fn run(what: &What) -> Result<u8> {
    match what {
        What::Codec(args) => codec::run(args),
        What::Link(args) => link::run(args),
        What::Collective(args) => collective::run(args),
    }
}
