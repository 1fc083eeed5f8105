//! `thinwire bench`: what this machine and this network give, and how much of it we use.
//!
//! Every figure stands beside a limit measured in the same run: a copy of the same memory, a plain
//! TCP stream between the same two ranks.

mod choice;
pub(crate) mod codec;
mod collective;
mod cores;
mod distortion;
mod floor;
mod link;
mod method;
mod plain;
mod rates;
mod replay;
mod shapes;
mod sync;

use anyhow::Result;
use clap::Subcommand;

/// Measure what is fast and what is not, beside its limit.
#[derive(Subcommand)]
pub enum What {
    /// Encode and decode, beside a plain copy
    Codec(codec::Args),
    /// Bits and errors of codecs on recorded gradients, beside those of the best uniform quantiser
    Distortion(distortion::Args),
    /// A link between two ranks, beside a plain TCP stream
    Link(link::Args),
    /// All-reduce, beside the bytes over the bandwidth of a plain TCP stream
    Collective(collective::Args),
    /// Time that an iteration waits for its gradients, by method, on the tensors of a known model
    Sync(sync::Args),
    /// Step time of `auto`, beside that of the fastest fixed codec within its error budget
    Choice(choice::Args),
}

/// Measures.
///
/// # Errors
/// If ranks cannot be started or lose each other.
pub fn run(what: &What) -> Result<u8> {
    match what {
        What::Codec(args) => codec::run(args),
        What::Distortion(args) => distortion::run(args),
        What::Link(args) => link::run(args),
        What::Collective(args) => collective::run(args),
        What::Sync(args) => sync::run(args),
        What::Choice(args) => choice::run(args),
    }
}
