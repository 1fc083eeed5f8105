//! `thinwire codec bench`: one codec's speed, beside a copy of the same buffer.

use anyhow::Result;
use thinwire_codec::Choice;

use crate::command::bench::codec;

/// Encode and decode, beside a plain copy.
#[derive(clap::Args)]
pub struct Args {
    /// The file, perhaps with parameters: mine.codec:tau=0.02; or the name of any codec
    #[arg(value_name = "FILE")]
    codec: Choice,
    /// The size of the buffer in MiB
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    size: u32,
    /// Number of measurements of each, whose median is shown
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// Measures.
///
/// # Errors
/// If standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let codecs = vec![args.codec.clone()];
    codec::run(&codec::Args { codecs, size: args.size, rounds: args.rounds, json: args.json })
}
