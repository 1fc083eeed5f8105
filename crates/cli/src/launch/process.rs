//! Processes of a launcher, their outputs, and signals to the launcher itself.
//!
//! Lines of rank 0 are written to the launcher's own outputs. Lines of other ranks are written to
//! standard error, each after the name of its process. In an elastic job, rank 0 may be a different
//! process in every epoch.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thinwire_job::PORT_VARIABLE;
use thinwire_job::supervisor::End;
use thinwire_link::descriptors;

use super::{child, errors, forward};
use crate::invocation;

/// The program that a user runs.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// The port that its ranks on this machine share, unless they read it from the environment.
    pub port: Option<u16>,
}

impl CommandLine {
    /// Returns the variable with the port.
    pub fn port_variable(&self) -> Option<(&'static str, String)> {
        self.port.map(|port| (PORT_VARIABLE, port.to_string()))
    }
}

/// Program of a job, which is started several times on this machine.
pub struct Program {
    /// The program as it was given.
    pub command: CommandLine,
    /// Largest number of processes on this machine.
    pub most: u32,
}

/// Names and values of environment variables.
pub type Variables = Vec<(&'static str, String)>;

impl Program {
    /// Returns the command that starts a process of this program, with variables for its place in the job.
    ///
    /// # Errors
    /// If the path of this program's file is unknown.
    pub fn start(&self, variables: Variables, error_file: &Path) -> Result<Command> {
        let mut command = start(&self.command.words, error_file)?;
        // A rank that this process was given is that of none of its own.
        ["RANK", "WORLD_SIZE", "THINWIRE_STORE"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command.envs(self.command.port_variable());
        command.envs(variables).env("LOCAL_WORLD_SIZE", self.most.to_string());
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            let threads = (cores / self.most as usize).max(1);
            command.env("RAYON_NUM_THREADS", threads.to_string());
        }
        Ok(command)
    }
}

/// Returns the command that starts a process which ends with this one and leads its own process group. The
/// process writes its error to a file.
///
/// # Errors
/// If the path of this program's file is unknown.
pub fn start(words: &[OsString], error_file: &Path) -> Result<Command> {
    let me = invocation::program()?;
    let mut command = Command::new(&me[0]);
    command.args(&me[1..]).arg(child::NAME).arg(std::process::id().to_string()).args(words);
    command.process_group(0).stdin(Stdio::null()).env(errors::VARIABLE, error_file);
    Ok(command)
}

/// Forwards the outputs of a process. Lines begin with a prefix, unless the output of this process is the
/// output of the job. `unread` is called if the reader of standard output has closed it.
pub fn forward(
    child: &mut Child,
    number: u32,
    prefix: String,
    speaker: &Arc<AtomicU32>,
    unread: impl Fn() + Send + 'static,
) -> [Option<Receiver<()>>; 2] {
    let (length, speaker) = (prefix.len(), speaker.clone());
    let speaks = move || speaker.load(Ordering::Relaxed) == number;
    let speaks_now = speaks.clone();
    let to_output = move |line: &[u8]| match speaks_now() {
        true if !print(&line[length..]) => unread(),
        true => {}
        false => forward::to_error(line),
    };
    let aside = move |line: &[u8]| forward::to_error(if speaks() { &line[length..] } else { line });
    let (output, error) = (child.stdout.take(), child.stderr.take());
    [
        output.map(|output| forward::each(output, prefix.clone(), to_output)),
        error.map(|error| forward::each(error, prefix, aside)),
    ]
}

/// Waits in a thread until a process has ended and its outputs are forwarded.
pub fn watch_end(
    mut child: Child,
    outputs: [Option<Receiver<()>>; 2],
    report: impl FnOnce(End) + Send + 'static,
) {
    thread::spawn(move || {
        let status = child.wait();
        let end = status.map_or(End::Code(2), end_of);
        forward::drain(outputs);
        report(end);
    });
}

fn end_of(status: ExitStatus) -> End {
    match (status.signal(), status.code()) {
        (Some(signal), _) => End::Signal(signal),
        (None, code) => End::Code(code.unwrap_or(2)),
    }
}

/// Writes a line to standard output. Returns false if its reader has closed it.
fn print(line: &[u8]) -> bool {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line).and_then(|()| output.flush());
    !written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Raises the limit of open files for the outputs of all processes started here, and two connections per
/// process.
pub fn reserve_descriptors(ranks: u32, servers: u32) -> Result<()> {
    let needed = 4 * u64::from(ranks + servers);
    Ok(descriptors::reserve(&format!("a job of {ranks} ranks on this machine"), needed)?)
}

/// Sends the `event` for each signal to this process.
///
/// # Errors
/// If the system does not allow handling signals.
pub fn watch_signals<E: Send + 'static>(events: Sender<E>, event: fn(i32) -> E) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if events.send(event(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
