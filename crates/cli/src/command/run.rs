//! `thinwire run`: any program as the ranks of one job.

use std::ffi::OsString;

use anyhow::Result;

use crate::launch::{self, elastic::Parting};
use crate::output::say;
use crate::place::{Flags, ensure_ranks};
use crate::size::{self, ElasticFlags, Size};

/// Start any program N times, as the ranks of one job.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks to start on this machine, or MIN:MAX for an elastic job of a program that can
    /// do so [default: 2]
    #[arg(long, value_name = "N", value_parser = size::up_to(4096))]
    ranks: Option<Size>,
    #[command(flatten)]
    elastic: ElasticFlags,
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
    if let Some(job) = args.elastic.resolve(args.ranks, &Flags::default())? {
        let (program, token) = (args.program.clone(), args.token.as_ref());
        return launch::elastic::run(program, &job, token, Parting::Leave);
    }
    let ranks = args.ranks.and_then(Size::fixed);
    let place = Flags::default().find()?;
    if let Some(place) = place.filter(|place| place.world > 1) {
        ensure_ranks(&place, ranks)?;
        say(format!("joining {} as rank {} of {}", place.source, place.rank, place.world));
        return launch::join(&place, &args.program);
    }
    launch::run(args.program.clone(), ranks.unwrap_or(2), args.token.as_ref())
}
