//! `thinwire resize`: another number of ranks for an elastic job.

use anyhow::Result;

use crate::operator::Flags;
use crate::output::say;

/// Set how many ranks an elastic job should have; its launcher starts what is missing.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks, within the job's own MIN:MAX
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    #[command(flatten)]
    operator: Flags,
}

/// Tells the coordinator.
///
/// # Errors
/// If the coordinator cannot be reached, or the job's limits exclude the number.
pub fn run(args: &Args) -> Result<u8> {
    args.operator.connect()?.resize(args.ranks)?;
    say(format!("the job is to have {} ranks now", args.ranks));
    Ok(0)
}
