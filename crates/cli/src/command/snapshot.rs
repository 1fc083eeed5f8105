//! `thinwire snapshot`: requests a snapshot of the parameters on a job's servers.

use anyhow::Result;
use thinwire_server::take_snapshot;

use crate::operator::Flags;
use crate::output::print;
use crate::training::SNAPSHOT_PATIENCE;

/// Take a snapshot: the servers of a job write their parameters to their --snapshot-dir while training continues.
/// Prints the snapshot's name.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Flags,
}

/// Requests a snapshot and waits until it is complete.
///
/// # Errors
/// If the coordinator cannot be reached, or the snapshot fails.
pub fn run(args: &Args) -> Result<u8> {
    let name = take_snapshot(&args.operator.job_address()?, SNAPSHOT_PATIENCE)?;
    print(format_args!("{name}\n"))?;
    Ok(0)
}
