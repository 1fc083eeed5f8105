//! Test programs, which cargo builds and `xtask` runs several at a time.
//!
//! Most tests start processes and wait for them, so a second program finds an idle processor.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::results::Results;
use crate::process::{cargo_of_all, root, succeed};
use crate::summary::Summary;

/// One test program: the unit tests of a target, or a file of integration tests.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    executable: PathBuf,
    /// Its source file.
    source: PathBuf,
    /// The folder of its package, in which it runs.
    package: PathBuf,
}

/// Builds every test program of the workspace and runs all of them, two at a time, and one until `other` returns.
pub fn run(other: impl FnOnce() + Send) -> Result<Summary> {
    let mut programs = build()?;
    programs.reverse();
    let waiting = Mutex::new(programs);
    let work = || -> Result<Summary> {
        let mut summary = Summary::default();
        let next = || waiting.lock().expect("no worker panics").pop();
        while let Some(program) = next() {
            summary.add(program.run()?);
        }
        Ok(summary)
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            other();
            work()
        });
        let mut summary = work()?;
        summary.add(second.join().expect("no worker panics")?);
        Ok(summary)
    })
}

/// Builds the commands that tests in Python run, with the features of the test programs.
pub fn build_commands() -> Result<()> {
    let commands = ["--bin", "thinwire", "--bin", "thinwire-bench", "--example", "wire"];
    succeed(cargo_of_all("build").args(commands))
}

/// Builds all test programs, in the order in which cargo names them.
fn build() -> Result<Vec<Program>> {
    let mut command = cargo_of_all("test");
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stdout(Stdio::piped());
    let output =
        command.spawn().and_then(Child::wait_with_output).context("cannot start cargo test")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are no text")?;
    let messages = messages.lines().map(serde_json::from_str::<Value>);
    let messages = messages.collect::<Result<Vec<_>, _>>().context("cargo's message is no JSON")?;
    Ok(messages.iter().filter_map(program).collect())
}

/// Returns the test program that a message of cargo announces, if any.
fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != Value::Bool(true) {
        return None;
    }
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    Some(Program {
        executable: path(&message["executable"])?,
        source: path(&message["target"]["src_path"])?,
        package: path(&message["manifest_path"])?.parent()?.to_owned(),
    })
}

impl Program {
    /// Runs the program, prints its output in one piece, and returns its results.
    fn run(&self) -> Result<Summary> {
        let name = self.source.strip_prefix(root()).unwrap_or(&self.source).display();
        let output = Command::new(&self.executable)
            .current_dir(&self.package)
            .output()
            .with_context(|| format!("cannot start the tests of {name}"))?;
        let mut stdout = std::io::stdout().lock();
        write!(stdout, "\n     Running {name}\n")?;
        stdout.write_all(&output.stdout)?;
        stdout.write_all(&output.stderr)?;
        drop(stdout);
        let mut results = Results::default();
        String::from_utf8_lossy(&output.stdout).lines().for_each(|line| results.read(line));
        let mut summary = results.finish();
        if !output.status.success() && summary.failed.is_empty() {
            summary.failed.push(format!("{name}: {}", output.status));
        }
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let message = |test| {
            json!({
                "reason": "compiler-artifact",
                "manifest_path": "/house/crates/wire/Cargo.toml",
                "target": {"src_path": "/house/crates/wire/tests/header.rs"},
                "profile": {"test": test},
                "executable": "/house/target/debug/deps/header-1",
            })
        };
        let expected = Program {
            executable: "/house/target/debug/deps/header-1".into(),
            source: "/house/crates/wire/tests/header.rs".into(),
            package: "/house/crates/wire".into(),
        };
        assert_eq!(program(&message(true)), Some(expected));
        assert_eq!(program(&message(false)), None);
        assert_eq!(program(&json!({"reason": "build-finished", "success": true})), None);
    }
}
