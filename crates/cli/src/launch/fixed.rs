//! Jobs of a fixed number of ranks on this machine, which meet in a store of the launcher.
//!
//! Every rank gets torchrun's environment, so that a program written for torchrun runs unchanged.

use std::ffi::OsString;
use std::net::TcpListener;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use thinwire_job::supervisor::{Event, Limits};

use super::launcher::{self, Job, Report};
use super::process::Variables;
use super::{reserve_descriptors, watch_signals};
use crate::place::token_or_fresh;

/// Place at which ranks meet.
pub struct Fixed {
    ranks: u32,
    /// Where the rendezvous store listens, as host:port.
    coordinator: String,
    token: String,
    /// A port for the program's own rendezvous, torch.distributed's for instance.
    torch_port: u16,
}

/// Runs a program as so many ranks to its end, with a secret or a fresh one, and gives the code to exit
/// with: 0, or 128 + signal if a signal ended it.
///
/// # Errors
/// If ranks cannot be started, or any rank fails: which one, how, and what it or its peers said.
pub fn run(command: Vec<OsString>, ranks: u32, token: Option<&String>) -> Result<u8> {
    let token = token_or_fresh(token)?;
    let (_store, coordinator) = thinwire_job::open("127.0.0.1", 0, &token)?;
    reserve_descriptors(ranks, 0)?;
    let job = Fixed { ranks, coordinator, token, torch_port: free_port()? };
    let (sender, reports) = channel();
    watch_signals(sender.clone(), |signal| Report::Local(Event::Signal(signal)))?;
    launcher::run(command, Limits::fixed(ranks), Job::Fixed(job), sender, &reports)
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}

impl Fixed {
    /// Returns the variables that say a rank its place.
    pub fn variables(&self, rank: u32) -> Variables {
        vec![
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", self.ranks.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", self.torch_port.to_string()),
            ("THINWIRE_COORDINATOR", self.coordinator.clone()),
            ("THINWIRE_STORE", "launcher".to_owned()),
            ("THINWIRE_TOKEN", self.token.clone()),
        ]
    }
}
