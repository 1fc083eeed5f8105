//! `thinwire run`: any program as the ranks of one job.

use std::ffi::OsString;

use anyhow::Result;

use crate::launch;
use crate::output::say;
use crate::place::{Flags, ensure_ranks};

/// Start any program N times, as the ranks of one job.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks to start on this machine [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,
    /// The job's secret; a fresh one unless given
    #[arg(long, env = "THINWIRE_TOKEN", hide_env_values = true, value_name = "SECRET")]
    token: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    program: Vec<OsString>,
}

/// Starts the ranks; inside another launcher's job, becomes one of its ranks.
///
/// # Errors
/// If ranks cannot be started, or one fails.
pub fn run(args: &Args) -> Result<u8> {
    let place = Flags::default().find()?;
    if let Some(place) = place.filter(|place| place.world > 1) {
        ensure_ranks(&place, args.ranks)?;
        say(format!("joining {} as rank {} of {}", place.source, place.rank, place.world));
        return launch::join(&place, &args.program);
    }
    launch::run(args.program.clone(), args.ranks.unwrap_or(2), args.token.as_ref())
}
