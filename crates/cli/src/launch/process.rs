//! Processes that a launcher starts, and their outputs.
//!
//! Rank 0 speaks for the job: its lines go where the launcher's own go, and those of the others to standard
//! error, each after the name of its process. In an elastic job rank 0 may be another process in every epoch.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result};

use super::{child, errors, forward};

/// Program of a job, which starts several times on this machine.
pub struct Program {
    /// The program, and its arguments.
    pub command: Vec<OsString>,
    /// Most processes on this machine.
    pub most: u32,
}

/// Names and values of environment variables.
pub type Variables = Vec<(&'static str, String)>;

impl Program {
    /// Returns the start of a process of this program, with variables that say its place in the job.
    ///
    /// # Errors
    /// If this program does not know its own file.
    pub fn start(&self, variables: Variables, error_file: &Path) -> Result<Command> {
        let mut command = start(&self.command, error_file)?;
        // A rank that this process was given is that of none of its own.
        ["RANK", "WORLD_SIZE", "THINWIRE_STORE"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command.envs(variables).env("LOCAL_WORLD_SIZE", self.most.to_string());
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = (cores / self.most as usize).max(1);
            command.env("RAYON_NUM_THREADS", threads.to_string());
        }
        Ok(command)
    }
}

/// Returns the start of a process that ends with this one, as the head of a process group of its own. It leaves
/// its error in a file.
///
/// # Errors
/// If this program does not know its own file.
pub fn start(words: &[OsString], error_file: &Path) -> Result<Command> {
    let me = std::env::current_exe().context("finding thinwire's own program file")?;
    let mut command = Command::new(me);
    command.arg(child::NAME).arg(std::process::id().to_string()).args(words);
    command.process_group(0).stdin(Stdio::null()).env(errors::VARIABLE, error_file);
    Ok(command)
}

/// The process that speaks for the job.
#[derive(Clone, Debug, Default)]
pub struct Speaker(Arc<AtomicU32>);

impl Speaker {
    /// Lets a process speak.
    pub fn set(&self, number: u32) {
        self.0.store(number, Ordering::Relaxed);
    }

    fn is(&self, number: u32) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}

/// Outputs of a process that are forwarded.
pub struct Outputs {
    /// Number of the process.
    pub number: u32,
    /// Beginning of its lines.
    pub prefix: String,
    /// The process whose lines have no such beginning.
    pub speaker: Speaker,
}

impl Outputs {
    /// Forwards them; `unread` is called if nobody reads standard output any more.
    pub fn forward(
        self,
        child: &mut Child,
        unread: impl Fn() + Send + 'static,
    ) -> [Option<Receiver<()>>; 2] {
        let Outputs { number, prefix, speaker } = self;
        let length = prefix.len();
        let to_error = |line: &[u8]| drop(std::io::stderr().lock().write_all(line));
        let speaks = speaker.clone();
        let to_output = move |line: &[u8]| match speaks.is(number) {
            true if !print(&line[length..]) => unread(),
            true => {}
            false => to_error(line),
        };
        let aside = move |line: &[u8]| match speaker.is(number) {
            true => to_error(&line[length..]),
            false => to_error(line),
        };
        let output = child.stdout.take();
        let error = child.stderr.take();
        [
            output.map(|output| forward::each(output, prefix.clone(), to_output)),
            error.map(|error| forward::each(error, prefix, aside)),
        ]
    }
}

/// Writes a line to standard output; false if its reader has gone.
fn print(line: &[u8]) -> bool {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line).and_then(|()| output.flush());
    !written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
