//! `thinwire codec`: a codec of one's own, before it is trained with.

mod bench;
mod check;
mod emit;

use anyhow::Result;
use clap::Subcommand;

/// Try a codec that is written as text.
#[derive(Subcommand)]
pub enum What {
    /// Check a codec against every law, and show its bytes and its error
    Check(check::Args),
    /// Encode and decode, compared with a plain copy
    Bench(bench::Args),
    /// Print the source code that a codec becomes on a device
    Emit(emit::Args),
}

/// Tries a codec.
///
/// # Errors
/// If standard output is closed.
pub fn run(what: &What) -> Result<u8> {
    match what {
        What::Check(args) => check::run(args),
        What::Bench(args) => bench::run(args),
        What::Emit(args) => emit::run(args),
    }
}
