//! `thinwire codec bench`: one codec's speed, beside a copy of the same buffer.

use anyhow::Result;
use thinwire_codec::Choice;

use crate::command::bench::codec;

/// Encode and decode, compared with a plain copy.
#[derive(clap::Args)]
pub struct Args {
    /// File, optionally with parameters (mine.codec:tau=0.02), or the name of any codec
    #[arg(value_name = "FILE")]
    codec: Choice,
    #[command(flatten)]
    how: codec::How,
}

/// Measures.
///
/// # Errors
/// If standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    codec::measure(std::slice::from_ref(&args.codec), &args.how)
}
