//! Jobs of a fixed number of ranks on this machine, which meet in a store of the launcher.
//!
//! Every rank gets torchrun's environment, so that a program written for torchrun runs unchanged.

use std::ffi::OsString;
use std::net::TcpListener;
use std::sync::mpsc::channel;

use anyhow::{Context, Result};
use thinwire_job::supervisor::{Event, Limits};

use super::launcher::{self, Job, Report};
use super::{reserve_descriptors, watch_signals};
use crate::place::token_or_fresh;

/// Runs a program as so many ranks to its end, with a secret or a fresh one, and gives the code to exit
/// with: 0, or 128 + signal if a signal ended it.
///
/// # Errors
/// If ranks cannot be started, or any rank fails: which one, how, and what it or its peers said.
pub fn run(command: Vec<OsString>, ranks: u32, token: Option<&String>) -> Result<u8> {
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
