//! Every test, in Rust and in Python, with a closing count of what passed and was skipped, and why.
//!
//! A test that needs what not every machine has (root, a peer's library) carries
//! `#[ignore = "reason"]`; the reason is repeated at the end, so that nothing is skipped in silence.
//!
//! Tests that failed run once more at the end, without others beside them. If they pass, they are listed as flaky,
//! which is a fault of the tests or of what they test, and does not fail the run.

mod programs;
mod results;

use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, cargo_of_all, follow};
use crate::python::{self, Built};
use crate::summary::Summary;
use results::Results;

/// Runs all tests; with `arguments`, which go to `cargo test`, those in Rust alone.
///
/// Tests in Python run beside those in Rust, since most of a test's time is that of processes which start and wait:
/// those of PyTorch from the beginning, those of JAX once the programs in Rust have ended.
pub fn run(arguments: &[String]) -> Result<()> {
    let (mut summary, in_python) =
        if arguments.is_empty() { all()? } else { (rust(arguments)?, Ok(Summary::default())) };
    let in_python = in_python.and_then(|mut results| {
        retry(&mut results, python::test)?;
        Ok(results)
    });
    retry(&mut summary, |names| {
        let arguments = ["--", "--exact"].map(str::to_owned).into_iter().chain(names.to_vec());
        rust(&arguments.collect::<Vec<_>>())
    })?;
    let in_python = in_python.map(|results| summary.add(results));
    eprint!("{}", summary.report());
    in_python.context("the Python tests did not run")?;
    if !summary.failed.is_empty() {
        bail!("{} tests failed", summary.failed.len());
    }
    Ok(())
}

/// Runs all tests in Rust, and beside them those in Python, which may fail to start.
fn all() -> Result<(Summary, Result<Summary>)> {
    let (send, receive) = mpsc::channel::<Arc<Built>>();
    thread::scope(|scope| {
        let torch = scope.spawn(move || match python::build()? {
            Ok(built) => {
                let built = Arc::new(built);
                // Nobody receives it where the tests in Rust do not compile.
                let _ = send.send(Arc::clone(&built));
                built.test_torch(&[])
            }
            Err(missing) => Ok(python::skipped(&missing)),
        });
        let in_rust = rust(&[])?;
        // Without a package the other thread says why.
        let jax = receive.recv().map_or_else(|_| Ok(Summary::default()), |it| it.test_jax(&[]));
        let torch = torch.join().expect("it does not panic");
        let in_python = torch.and_then(|mut summary| {
            summary.add(jax?);
            Ok(summary)
        });
        Ok((in_rust, in_python))
    })
}

/// Runs the tests that failed once more, by `run`.
fn retry(summary: &mut Summary, run: impl FnOnce(&[String]) -> Result<Summary>) -> Result<()> {
    if !summary.failed.is_empty() {
        summary.retried(&run(&summary.failed)?);
    }
    Ok(())
}

/// Runs unit, integration and documentation tests of the workspace: programs several at a time, or, with arguments,
/// as `cargo test` does.
fn rust(arguments: &[String]) -> Result<Summary> {
    if arguments.is_empty() {
        let mut summary = programs::run()?;
        summary.add(cargo_test(cargo_of_all("test").arg("--doc"), &[])?);
        return Ok(summary);
    }
    let mut command = match names_packages(arguments) {
        true => cargo(&["test", "--locked"]),
        false => cargo_of_all("test"),
    };
    cargo_test(&mut command, arguments)
}

/// Runs `cargo test`, and reads its lines.
fn cargo_test(command: &mut Command, arguments: &[String]) -> Result<Summary> {
    command.arg("--no-fail-fast").args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo test")?;
    let mut results = Results::default();
    follow(&mut child, |line| results.read(line))?;
    let status = child.wait().context("cannot wait for cargo test")?;
    let summary = results.finish();
    if !status.success() && summary.failed.is_empty() {
        bail!("cargo test ended with {status}");
    }
    Ok(summary)
}

/// Whether cargo is told which packages to test, instead of all.
fn names_packages(arguments: &[String]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| {
        let flag = argument.split('=').next().unwrap_or(argument);
        argument.starts_with("-p") || flag == "--package" || flag == "--manifest-path"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_package_is_tested_alone() {
        let names = |text: &str| {
            names_packages(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert!(names("-p thinwire-wire") && names("--package=xtask ring"));
        assert!(!names("ring -- -p") && !names("--release"));
    }
}
