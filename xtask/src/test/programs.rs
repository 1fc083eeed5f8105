//! Test programs, which cargo builds and `xtask` runs several at a time.
//!
//! Most tests start processes and wait for them, so a second program finds an idle processor.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::results::Results;
use crate::process::{cargo_of_all, follow, print, root, succeed};
use crate::summary::Summary;

/// How often a program that hangs is run.
const ATTEMPTS: u32 = 2;

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
    /// Runs the program, once more if it hangs, prints its output in one piece, and returns its results.
    fn run(&self) -> Result<Summary> {
        let name = self.source.strip_prefix(root()).unwrap_or(&self.source).display();
        for attempt in 0..ATTEMPTS {
            let errors = self.executable.with_extension("stderr");
            let mut command = Command::new(&self.executable);
            command.current_dir(&self.package).stderr(File::create(&errors)?);
            let mut results = Results::default();
            let mut output = String::new();
            let status = follow(&mut command, |line| {
                results.read(line);
                output += &format!("{line}\n");
                Ok(())
            })?;
            let errors = fs::read(&errors)?;
            print(&format!("\n     Running {name}\n{output}{}", String::from_utf8_lossy(&errors)))?;
            let Some(status) = status else { continue };
            let mut summary = results.finish();
            if !status.success() && summary.failed.is_empty() {
                summary.failed.push(format!("{name}: {status}"));
            }
            if attempt > 0 {
                summary.flaky.push(format!("{name} (hung)"));
            }
            return Ok(summary);
        }
        Ok(Summary { failed: vec![format!("{name}: hung")], ..Summary::default() })
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
