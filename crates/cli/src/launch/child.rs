//! First steps of a rank's process: it makes sure that it ends with the launcher, then becomes the
//! program.
//!
//! For this, it requests the kernel's parent-death signal, which survives `exec`. Requesting it in the
//! child before `exec` needs no unsafe code, but costs one more `exec` per rank. Systems other than
//! Linux have no such signal, so there ranks outlive a killed launcher.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
#[cfg(target_os = "linux")]
use rustix::process::Signal;
use rustix::process::{Pid, getppid};

use crate::failure::OrHint;

/// The hidden subcommand with which the launcher starts a rank.
pub const NAME: &str = "__rank";

/// Becomes the program of a rank.
#[derive(clap::Args)]
pub struct Args {
    /// The process id of the launcher
    launcher: i32,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program. This function returns only if the program cannot be run.
///
/// # Errors
/// If the launcher has ended, or there is no such program.
pub fn run(args: &Args) -> Result<u8> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("tying the rank's life to the launcher's")?;
    let parent = getppid().map(Pid::as_raw_nonzero).map(i32::from);
    ensure!(parent == Some(args.launcher), "the launcher has gone");
    become_program(&args.command, Vec::new())
}

/// Replaces this process by a program with additional environment variables.
///
/// # Errors
/// If there is no such program. Otherwise this function does not return.
pub fn become_program(command: &[OsString], variables: Vec<(&str, String)>) -> Result<u8> {
    let (program, arguments) = command.split_first().context("no program to run")?;
    let error = Command::new(program).args(arguments).envs(variables).exec();
    Err(error)
        .with_context(|| format!("cannot run '{}'", program.to_string_lossy()))
        .or_hint("give a program on PATH, or the path of an executable file")
}
