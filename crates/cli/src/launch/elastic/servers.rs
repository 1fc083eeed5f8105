//! Processes of a job's servers on this machine.
//!
//! Servers end with their launcher. A failed server is not replaced: its shards have backups, and a server
//! started by hand takes over copies. If all servers have ended and one of them has reported an error, the
//! job ends with this error.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use thinwire_job::elastic::{self, Job, JobAddress, Options};
use thinwire_job::supervisor::End;
use thinwire_server::Configuration;

use crate::invocation;
use crate::launch::errors::Errors;
use crate::launch::{CommandLine, forward, process};
use crate::output::say;
use crate::size;

/// Most servers of a job.
const SERVERS_MAX: u32 = 1024;

/// Returns a job whose coordinator also manages servers.
pub fn with_servers(workers: Options) -> Job {
    let options =
        Options { silence: workers.silence, ..Options::new(workers.mode, 1, SERVERS_MAX) };
    let servers = elastic::Servers::new(options, Configuration::default);
    Job { workers, servers: Some(servers) }
}

/// Server processes started by this launcher.
pub struct Servers {
    /// Process groups by number of the server; `None` for a server that has ended.
    groups: Vec<Option<Pid>>,
    errors: Errors,
    /// First server that ended with an error.
    failed: Option<(u32, End)>,
}

impl Servers {
    /// Starts the servers of a job with its coordinator. They use the port that the ranks of `command` share,
    /// if there is one. `ended` is called with the number of each server that ends.
    ///
    /// # Errors
    /// If the system cannot start a server.
    pub fn start(
        job: &size::Elastic,
        coordinator: &str,
        token: &str,
        command: &CommandLine,
        ended: impl Fn(u32, End) + Clone + Send + 'static,
    ) -> Result<Servers> {
        let errors = Errors::create("server")?;
        let mut servers = Servers { groups: Vec::new(), errors, failed: None };
        for number in 0..job.servers {
            let job_address = JobAddress::server(coordinator, token)?;
            let mut child =
                start(&job_address, &job.server_arguments, &servers.errors.path(number))?
                    .envs(command.port_variable())
                    .spawn()
                    .with_context(|| format!("starting server {number}"))?;
            servers.groups.push(Some(Pid::from_child(&child)));
            let error = child.stderr.take();
            let prefix = format!("[server {number}] ");
            let error = error.map(|it| forward::each(it, prefix, forward::to_error));
            let ended = ended.clone();
            process::watch_end(child, [None, error], move |end| ended(number, end));
        }
        Ok(servers)
    }

    /// Records the end of a server, and prints its error if it has one.
    ///
    /// # Errors
    /// If it was the last server, and a server has ended with an error: the first such error.
    pub fn ended(&mut self, number: u32, end: End) -> Result<()> {
        self.groups[number as usize] = None;
        let message = self.errors.message(number);
        if message.is_some() {
            self.failed.get_or_insert((number, end));
        }
        match self.failed.filter(|_| self.groups.iter().all(Option::is_none)) {
            Some((first, end)) => Err(self.errors.failure(first, end, self.groups.len() as u32)),
            None => {
                message.into_iter().for_each(|it| say(format!("server {number}: {it}")));
                Ok(())
            }
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for group in self.groups.iter().flatten() {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}

fn start(job_address: &JobAddress, arguments: &[OsString], error_file: &Path) -> Result<Command> {
    let words = [&invocation::program()?[..], &["server".into()], arguments].concat();
    let mut command = process::start(&words, error_file)?;
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.envs(job_address.variables());
    Ok(command)
}
