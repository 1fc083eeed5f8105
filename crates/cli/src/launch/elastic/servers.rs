//! Server processes of a job's parameter server on this machine.
//!
//! They end with their launcher. One that dies is not replaced: its shards have backups, and a server that is
//! started by hand takes copies over.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use thinwire_job::elastic::{self, Job, Options, Seat};
use thinwire_server::Configuration;

use crate::launch::{child, forward};

/// Most servers of a job.
const SERVERS_MAX: u32 = 1024;

/// Returns a job whose coordinator also decides about servers.
pub fn job(workers: Options, servers: bool) -> Job {
    let options =
        Options { silence: workers.silence, ..Options::new(workers.authority, 1, SERVERS_MAX) };
    let servers = servers.then(|| elastic::Servers::new(options, Configuration::default));
    Job { workers, servers }
}

/// Server processes that this launcher has started.
#[derive(Debug, Default)]
pub struct Servers {
    children: Vec<Child>,
}

impl Servers {
    /// Starts `count` servers of the job at `coordinator`, each with these arguments.
    ///
    /// # Errors
    /// If the system has no room for one.
    pub fn start(
        (count, arguments): (u32, &[OsString]),
        coordinator: &str,
        token: &str,
    ) -> Result<Servers> {
        let mut servers = Servers::default();
        for number in 0..count {
            let seat = Seat::server(coordinator, token)?;
            let mut child =
                start(&seat, arguments).with_context(|| format!("starting server {number}"))?;
            let error = child.stderr.take();
            error
                .into_iter()
                .for_each(|it| drop(forward::lines(it, format!("[server {number}] "))));
            servers.children.push(child);
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended needs no signal.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

fn start(seat: &Seat, arguments: &[OsString]) -> Result<Child> {
    let me = std::env::current_exe().context("finding thinwire's own program file")?;
    let words: [OsString; 2] = [me.clone().into_os_string(), "server".into()];
    let mut command = Command::new(me);
    command.arg(child::NAME).arg(std::process::id().to_string()).args(words).args(arguments);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(command.envs(seat.variables()).spawn()?)
}
