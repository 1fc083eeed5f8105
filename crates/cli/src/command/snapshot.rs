//! `thinwire snapshot`: the parameters on the servers of a job, in files.

use anyhow::Result;
use thinwire_server::take_snapshot;

use crate::operator::Flags;
use crate::output::print;
use crate::training::SNAPSHOT_PATIENCE;

/// Let the servers of a job write a snapshot into their --snapshot-dir, and print its name. Training goes on.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Flags,
}

/// Asks for a snapshot and waits until it is whole.
///
/// # Errors
/// If the coordinator cannot be reached, or the servers cannot write it.
pub fn run(args: &Args) -> Result<u8> {
    let name = take_snapshot(&args.operator.seat()?, SNAPSHOT_PATIENCE)?;
    print(format_args!("{name}\n"))?;
    Ok(0)
}
