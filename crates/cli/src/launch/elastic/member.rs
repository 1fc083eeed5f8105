//! The process of one member of an elastic job.
//!
//! Rank 0 speaks for the job: its lines go where the launcher's own go, and those of the others to standard
//! error, each after the name of its member. Rank 0 may be another member in every epoch.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result};
use thinwire_job::elastic::{NUMBER, Seat};

use crate::launch::{child, errors, forward};

/// Program of a job, of which members are started on this machine.
pub struct Program {
    /// The program, and its arguments.
    pub command: Vec<OsString>,
    /// Most members on this machine.
    pub most: u32,
}

/// A member that is to be started.
pub struct Member {
    /// Number of the member.
    pub number: u32,
    /// Seat of the member in the job.
    pub seat: Seat,
    /// Place among the members of this machine, by which a program chooses its device.
    pub slot: u32,
    /// File to which it writes its error.
    pub error_file: PathBuf,
}

impl Program {
    /// Starts the process of a member, as the head of a process group of its own.
    ///
    /// # Errors
    /// If the system cannot start it.
    pub fn start(&self, member: &Member) -> Result<Child> {
        let me = std::env::current_exe().context("finding thinwire's own program file")?;
        let mut command = Command::new(me);
        command.arg(child::NAME).arg(std::process::id().to_string()).args(&self.command);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A rank that this process was given is that of no member.
        ["RANK", "WORLD_SIZE", "THINWIRE_STORE"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command
            .envs(member.seat.variables())
            .env("LOCAL_RANK", member.slot.to_string())
            .env("LOCAL_WORLD_SIZE", self.most.to_string())
            .env(errors::VARIABLE, &member.error_file)
            .env(NUMBER, member.number.to_string());
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = (cores / self.most as usize).max(1);
            command.env("RAYON_NUM_THREADS", threads.to_string());
        }
        command.spawn().with_context(|| format!("starting member {}", member.number))
    }
}

/// The member that speaks for the job.
#[derive(Clone, Debug, Default)]
pub struct Voice(Arc<AtomicU32>);

impl Voice {
    /// Lets a member speak.
    pub fn give(&self, member: u32) {
        self.0.store(member, Ordering::Relaxed);
    }

    fn is(&self, member: u32) -> bool {
        self.0.load(Ordering::Relaxed) == member
    }
}

/// Forwards the outputs of a member; `unread` is called if nobody reads standard output any more.
pub fn forward(
    child: &mut Child,
    member: u32,
    voice: &Voice,
    unread: impl Fn() + Send + 'static,
) -> [Option<Receiver<()>>; 2] {
    let prefix = format!("[member {member}] ");
    let length = prefix.len();
    let to_error = |line: &[u8]| drop(std::io::stderr().lock().write_all(line));
    let speaks = voice.clone();
    let to_output = move |line: &[u8]| match speaks.is(member) {
        true if !print(&line[length..]) => unread(),
        true => {}
        false => to_error(line),
    };
    let speaks = voice.clone();
    let aside = move |line: &[u8]| match speaks.is(member) {
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

/// Writes a line to standard output; false if its reader has gone.
fn print(line: &[u8]) -> bool {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line).and_then(|()| output.flush());
    !written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
