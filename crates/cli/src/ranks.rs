//! Ranks of a command: this process is already a rank, or starts the command several times.

use anyhow::{Result, anyhow, ensure};
use thinwire_job::{Form, Place, elastic};

use crate::failure;
use crate::invocation;
use crate::launch::{self, CommandLine, elastic::Shutdown};
use crate::memory;
use crate::place::{Flags, ensure_ranks};
use crate::size::Elastic;

/// Most ranks per core that are started for the parts of a file without --ranks.
const RANKS_PER_CORE: usize = 8;

/// Next action of a command.
pub enum Start<T = Place> {
    /// Run as this rank.
    Rank(T),
    /// Exit with this code, because the ranks have ended.
    Done(u8),
}

/// Takes the place given by flags or a launcher, or starts `ranks` processes of this command.
///
/// A rank keeps freed memory for the next step.
///
/// # Errors
/// If flags contradict each other, or the ranks fail.
pub fn start(flags: &Flags, ranks: Option<u32>, default: u32) -> Result<Start> {
    memory::keep();
    if let Some(place) = flags.find()? {
        ensure_ranks(&place, ranks)?;
        return Ok(Start::Rank(place));
    }
    let ranks = ranks.unwrap_or(default);
    if ranks == 1 {
        return Ok(Start::Rank(Place::alone(Form::Flags)));
    }
    ensure!(ranks > 0, "no ranks to start, expected at least 1");
    launch_myself(flags, ranks).map(Start::Done)
}

/// Starts as [`start`] does, by default with a rank for each part of a file.
///
/// # Errors
/// As for [`start`] and [`check_parts`].
pub fn start_parts(flags: &Flags, ranks: Option<u32>, parts: u32) -> Result<Start> {
    check_parts(flags, ranks, parts)?;
    start(flags, ranks, parts)
}

/// Refuses to start a rank for each of too many parts.
///
/// # Errors
/// If the parts need more ranks than this machine can run, and no number of ranks is given.
pub fn check_parts(flags: &Flags, ranks: Option<u32>, parts: u32) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = cores * RANKS_PER_CORE;
    if ranks.is_none() && parts as usize > most && flags.find()?.is_none() {
        let error = anyhow!(
            "{parts} parts would start {parts} ranks on {cores} cores, expected at most {most}"
        );
        let hint = "give --ranks, or --rank, --world and --coordinator on several machines";
        return Err(failure::hinted(error, hint));
    }
    Ok(())
}

/// Prepares a rank before it connects to the others. If the preparation fails, tells the other ranks, if
/// they can be reached, so that none of them waits for this rank.
///
/// # Errors
/// Errors of the preparation.
pub fn prepared<T>(flags: &Flags, prepare: impl FnOnce() -> Result<T>) -> Result<T> {
    prepare().inspect_err(|error| {
        if let Ok(Some(place)) = flags.find()
            && let Ok(token) = flags.token(&place)
        {
            // The error at hand says more than that others did not hear of it.
            let _ = thinwire_job::decline(&place, &token, &failure::lines(error).0);
        }
    })
}

/// Returns the number of threads of this machine that one rank may use for arithmetic.
pub fn threads(place: &Place) -> usize {
    let told = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    told.filter(|threads| *threads > 0)
        .unwrap_or((cores / place.local_world.max(1) as usize).max(1))
}

fn launch_myself(flags: &Flags, ranks: u32) -> Result<u8> {
    launch::run(myself()?, ranks, flags.token.as_ref())
}

/// Starts processes of this command as the members of an elastic job. Its servers share `port` on this
/// machine.
///
/// # Errors
/// If the job fails.
pub fn launch_elastic(flags: &Flags, job: &Elastic, port: Option<u16>) -> Result<u8> {
    let shutdown = if job.servers > 0 { Shutdown::Terminate } else { Shutdown::Leave };
    let command = CommandLine { port, ..myself()? };
    launch::elastic::run(command, job, flags.token.as_ref(), shutdown)
}

/// Returns whether this process is a member of an elastic job.
pub fn is_member() -> bool {
    thinwire_job::process(elastic::VARIABLE).is_some()
}

/// Returns the command line of this process.
fn myself() -> Result<CommandLine> {
    let words = [invocation::program()?, invocation::arguments()].concat();
    // Its flag says the port once more.
    Ok(CommandLine { words, port: None })
}
