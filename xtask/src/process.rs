//! Child processes: cargo and other programs, at the root of the repository.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

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

/// Passes a child's piped output on, line by line, and shows each line to `read`. Lines of two children that are
/// followed at a time stay whole.
pub fn follow(child: &mut Child, mut read: impl FnMut(&str)) -> Result<()> {
    let output = child.stdout.take().expect("stdout was piped");
    for line in BufReader::new(output).split(b'\n') {
        let mut line = line.context("cannot read the output of the tests")?;
        read(&String::from_utf8_lossy(&line));
        line.push(b'\n');
        std::io::stdout().write_all(&line)?;
    }
    Ok(())
}
