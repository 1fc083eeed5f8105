//! Ranks of a command: this process is one already, or it starts itself N times.

use anyhow::{Result, anyhow, ensure};
use thinwire_job::{Form, Place, elastic};

use crate::failure;
use crate::invocation;
use crate::launch::{self, CommandLine, elastic::Shutdown};
use crate::memory;
use crate::place::{Flags, ensure_ranks};
use crate::size::Elastic;

/// Most ranks per core that the parts of a file start without --ranks.
const RANKS_PER_CORE: usize = 8;

/// Next thing that a command does.
pub enum Start<T = Place> {
    /// It is this rank.
    Rank(T),
    /// Exit with this code: the ranks have run.
    Done(u8),
}

/// Takes the place that flags or a launcher give, or starts `ranks` processes of this command.
///
/// A rank keeps the memory that it frees, for the next step.
///
/// # Errors
/// If the place is contradictory, or the ranks fail.
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

/// Starts as [`start`] does, by default a rank for each part of a file.
///
/// # Errors
/// As [`start`] and [`check_parts`].
pub fn start_parts(flags: &Flags, ranks: Option<u32>, parts: u32) -> Result<Start> {
    check_parts(flags, ranks, parts)?;
    start(flags, ranks, parts)
}

/// Refuses to start a rank for each of many parts.
///
/// # Errors
/// If the parts are for more machines than this one and no number of ranks is given.
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

/// Prepares a rank before it meets the others. If it fails, the others are told, as far as they can
/// be reached: nobody waits for a rank that will not come.
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

/// Returns the number of threads that one rank's arithmetic may use of this machine.
pub fn threads(place: &Place) -> usize {
    let told = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    told.filter(|threads| *threads > 0)
        .unwrap_or((cores / place.local_world.max(1) as usize).max(1))
}

fn launch_myself(flags: &Flags, ranks: u32) -> Result<u8> {
    launch::run(myself()?, ranks, flags.token.as_ref())
}

/// Starts processes of this command as the members of an elastic job, whose servers share their `port` on this
/// machine.
///
/// # Errors
/// If the job fails.
pub fn launch_elastic(flags: &Flags, job: &Elastic, port: Option<u16>) -> Result<u8> {
    let shutdown = if job.servers > 0 { Shutdown::Terminate } else { Shutdown::Leave };
    let command = CommandLine { port, ..myself()? };
    launch::elastic::run(command, job, flags.token.as_ref(), shutdown)
}

/// Whether this process is a member of an elastic job.
pub fn is_member() -> bool {
    thinwire_job::process(elastic::VARIABLE).is_some()
}

/// This command, as it was typed.
fn myself() -> Result<CommandLine> {
    let words = [invocation::program()?, invocation::arguments()].concat();
    // Its flag says the port once more.
    Ok(CommandLine { words, port: None })
}
