//! Child processes: cargo and other programs, at the root of the repository.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The repository's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository")
}

/// The cargo that runs us, at the repository's root.
pub fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    let mut command = as_by_hand(Command::new(cargo));
    command.current_dir(root()).args(arguments);
    command
}

/// Returns the command without what cargo has told this program of its package: build scripts that look at these
/// variables would run again after each command by hand or of another program, and all that needs them.
pub fn as_by_hand(mut command: Command) -> Command {
    let own = std::env::vars_os().map(|(name, _)| name);
    let of_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for name in own.filter(of_package) {
        command.env_remove(name);
    }
    command
}

/// Features of the command that releases have. Everything is built with one set of features.
const FEATURES: &str = "thinwire-cli/etcd,thinwire-cli/s3,thinwire/cuda";

/// The cargo that runs us, for all packages and the features of releases.
pub fn cargo_of_all(subcommand: &str) -> Command {
    cargo(&[subcommand, "--locked", "--workspace", "--features", FEATURES])
}

/// Returns the output of `cargo metadata`.
pub fn metadata() -> Result<Value> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--locked"];
    let output = cargo(&arguments).output().context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Runs a command, which must succeed.
pub fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// Returns the line that a user would type to run `command`.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> = std::iter::once(program)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

/// Longest time without a line of output. No test is silent for as long, so a child that is hangs.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// Interval between two looks at a child that prints nothing.
const LOOK: Duration = Duration::from_secs(1);

/// Runs a command, shows each line of its stdout to `read`, and returns its exit status; `None` if it hung and was
/// killed. A process that the command leaves behind may keep its stdout open, so the end of the command counts.
pub fn follow(
    command: &mut Command,
    mut read: impl FnMut(&str) -> io::Result<()>,
) -> Result<Option<ExitStatus>> {
    let name = line(command);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("cannot start {name}"))?;
    let output = child.stdout.take().expect("stdout was piped");
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(output).split(b'\n').map_while(io::Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
    let mut heard = Instant::now();
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                heard = Instant::now();
                read(&String::from_utf8_lossy(&line))?;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Some(child.wait()?)),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Some(status));
                }
            }
        }
        if heard.elapsed() >= SILENCE {
            eprintln!("{name} has printed nothing for {} s; what runs:", SILENCE.as_secs());
            succeed(Command::new("ps").args(["-eo", "pid,ppid,stat,etimes,wchan:20,args"]))?;
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
    }
}

/// Prints a line of a child. Lines of two children that are followed at a time stay whole.
pub fn print(line: &str) -> io::Result<()> {
    io::stdout().write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_a_command_leaves_behind_is_not_waited_for() {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo one; echo two; exit 3"]);
        let mut lines = Vec::new();
        let status = follow(&mut command, |line| {
            lines.push(line.to_owned());
            Ok(())
        });
        assert_eq!(status.unwrap().and_then(|status| status.code()), Some(3));
        assert_eq!(lines, ["one", "two"]);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
