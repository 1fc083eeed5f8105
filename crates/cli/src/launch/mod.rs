//! The launcher, which runs one program several times on this machine.
//!
//! A state machine of crate `job` decides about the processes of a job, fixed or elastic, and this module
//! carries out its decisions. No rank outlives the job: each rank is a process group of its own, which the
//! launcher kills, and it ends with the launcher even if the launcher is killed.

pub mod child;
pub mod elastic;
mod errors;
mod forward;
mod launcher;
mod process;

use std::net::TcpListener;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use thinwire_job::Place;
use thinwire_job::elastic::JobAddress;
use thinwire_job::supervisor::{Event, Limits};

use crate::place::token_or_fresh;
use launcher::{Job, Report};
use process::reserve_descriptors;

pub use errors::{is_launched, leave};
pub use process::{CommandLine, watch_signals};

/// Runs a program as a fixed number of ranks on this machine until the job ends, with the given secret or a
/// new one. Returns the exit code: 0, or 128 + signal if a signal ended the job. Ranks meet in a store of the
/// launcher and get torchrun's environment, so that programs for torchrun run unchanged.
///
/// # Errors
/// If ranks cannot be started, or any rank fails: the failed rank, its exit and the error message of it or
/// its peers.
pub fn run(command: CommandLine, ranks: u32, token: Option<&String>) -> Result<u8> {
    let token = token_or_fresh(token)?;
    let (_store, coordinator) = thinwire_job::open("127.0.0.1", 0, &token)?;
    reserve_descriptors(ranks, 0)?;
    let variables = vec![
        ("WORLD_SIZE", ranks.to_string()),
        ("MASTER_ADDR", "127.0.0.1".to_owned()),
        // For the program's own rendezvous, torch.distributed's for instance.
        ("MASTER_PORT", free_port()?.to_string()),
        ("THINWIRE_COORDINATOR", coordinator),
        ("THINWIRE_STORE", "launcher".to_owned()),
        ("THINWIRE_TOKEN", token),
    ];
    let (sender, reports) = channel();
    watch_signals(sender.clone(), |signal| Report::Local(Event::Signal(signal)))?;
    launcher::run(command, Limits::fixed(ranks), Job::Fixed(variables), sender, &reports)
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}

/// Becomes `program` as a member of an elastic job.
///
/// # Errors
/// If there is no such program.
pub fn join_elastic(job_address: &JobAddress, program: &CommandLine) -> Result<u8> {
    let mut variables = job_address.variables().to_vec();
    variables.extend(program.port_variable());
    child::become_program(&program.words, variables)
}

/// Becomes `program` as a rank of another launcher's job, with torchrun's variables. Ranks meet at the
/// address from that launcher, or at `coordinator`.
///
/// # Errors
/// If there is no such program.
pub fn join(place: &Place, coordinator: Option<&String>, program: &CommandLine) -> Result<u8> {
    let (address, port) = place.coordinator.rsplit_once(':').unwrap_or((&place.coordinator, ""));
    let numbers = [
        ("RANK", place.rank),
        ("WORLD_SIZE", place.world),
        ("LOCAL_RANK", place.local_rank),
        ("LOCAL_WORLD_SIZE", place.local_world),
    ];
    let mut variables = numbers.map(|(name, value)| (name, value.to_string())).to_vec();
    variables.extend(coordinator.map(|address| ("THINWIRE_COORDINATOR", address.clone())));
    for (name, value) in [("MASTER_ADDR", address), ("MASTER_PORT", port)] {
        if thinwire_job::process(name).is_none() {
            variables.push((name, value.trim_matches(['[', ']']).to_owned()));
        }
    }
    variables.extend(program.port_variable());
    child::become_program(&program.words, variables)
}
