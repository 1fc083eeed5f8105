//! `thinwire run`: starts any program as the ranks of one job.

use std::ffi::OsString;

use anyhow::{Result, anyhow};

use crate::failure::hinted;
use crate::launch::{self, CommandLine, elastic::Shutdown};
use crate::output::{Talk, say};
use crate::place::{Flags, ensure_ranks};
use crate::size::{self, ElasticFlags, Size};

/// Start any program N times, as the ranks of one job.
#[derive(clap::Args)]
pub struct Args {
    /// Ranks to start here, or MIN:MAX [default: 2]
    ///
    /// With MIN:MAX the job is elastic, which the program must support.
    #[arg(long, value_name = "N", value_parser = size::up_to(4096), help_heading = "Ranks")]
    ranks: Option<Size>,
    #[command(flatten)]
    elastic: ElasticFlags,
    /// Address of the job's coordinator or of rank 0
    ///
    /// With --ranks MIN:MAX, the address at which the job's coordinator listens; with THINWIRE_MEMBER=new, the
    /// coordinator of the elastic job that the program joins; inside another launcher's job, rank 0's address.
    #[arg(long, value_name = "HOST:PORT", help_heading = "Ranks")]
    coordinator: Option<String>,
    /// Secret of the job [default: THINWIRE_TOKEN or a new one]
    #[arg(
        long,
        env = "THINWIRE_TOKEN",
        hide_env = true,
        value_name = "SECRET",
        help_heading = "Ranks"
    )]
    token: Option<String>,
    /// Port of all ranks of a host [default: THINWIRE_PORT]
    ///
    /// The one TCP port at which others reach all ranks of this machine, for firewalls and containers.
    /// If neither this flag nor THINWIRE_PORT is set, each rank takes a free port.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Ranks")]
    port: Option<u16>,
    #[command(flatten)]
    talk: Talk,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true)]
    program: Vec<OsString>,
}

/// Starts the ranks, or becomes a rank of another launcher's job.
///
/// # Errors
/// If ranks cannot be started, or one fails.
pub fn run(args: &Args) -> Result<u8> {
    args.talk.set();
    let (coordinator, token) = (args.coordinator.clone(), args.token.clone());
    let flags = Flags { coordinator, token, ..Flags::default() };
    let program = CommandLine { words: args.program.clone(), port: args.port };
    if let Some(job_address) = flags.member()? {
        say(format!("joining the elastic job at {}", job_address.coordinator));
        return launch::join_elastic(&job_address, &program);
    }
    if let Some(job) = args.elastic.resolve(args.ranks, &flags)? {
        return launch::elastic::run(program, &job, args.token.as_ref(), Shutdown::Signal);
    }
    let ranks = args.ranks.and_then(Size::fixed);
    let place = Flags { coordinator: None, ..flags }.find()?;
    if let Some(place) = place.filter(|place| place.world > 1) {
        ensure_ranks(&place, ranks)?;
        say(format!("joining {} as rank {} of {}", place.source, place.rank, place.world));
        return launch::join(&place, args.coordinator.as_ref(), &program);
    }
    if let Some(address) = &args.coordinator {
        let error =
            anyhow!("--coordinator {address} has no effect: all ranks are started on this machine");
        return Err(hinted(
            error,
            "--ranks MIN:MAX starts an elastic job at this address, and THINWIRE_MEMBER=new joins one",
        ));
    }
    launch::run(program, ranks.unwrap_or(2), args.token.as_ref())
}
