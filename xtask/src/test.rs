//! Every test, in Rust and in Python, with a closing count of what passed and was skipped, and why.
//!
//! A test that needs what not every machine has (root, a peer's library) carries
//! `#[ignore = "reason"]`; the reason is repeated at the end, so that nothing is skipped in silence.
//!
//! Tests that failed run once more at the end, without others beside them. If they pass, they are listed as flaky,
//! which is a fault of the tests or of what they test, and does not fail the run.

mod programs;
mod results;

use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, bail};

use crate::process::{cargo, cargo_of_all, follow, print};
use crate::python;
use crate::summary::Summary;
use results::Results;

/// Runs all tests; with `arguments`, which go to `cargo test`, those in Rust alone.
///
/// Tests in Python run beside those in Rust, since most of a test's time is that of processes which start and wait.
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
    // Tests in Python take longest: what they run is compiled first, and tests in Rust are compiled beside them.
    programs::build_commands()?;
    let built = match python::build() {
        Ok(Ok(built)) => built,
        Ok(Err(missing)) => return Ok((rust_beside(|| {})?, Ok(python::skipped(&missing)))),
        Err(error) => return Ok((rust_beside(|| {})?, Err(error))),
    };
    thread::scope(|scope| {
        let torch = scope.spawn(|| built.test_torch(&[]));
        let jax = scope.spawn(|| built.test_jax(&[]));
        let join = |run: ScopedJoinHandle<Result<Summary>>| run.join().expect("it does not panic");
        let mut in_jax = Ok(Summary::default());
        let in_rust = rust_beside(|| in_jax = join(jax))?;
        let in_python = join(torch).and_then(|mut summary| {
            summary.add(in_jax?);
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

/// Runs unit, integration and documentation tests of the workspace: two programs at a time, and one until `other`
/// returns.
fn rust_beside(other: impl FnOnce() + Send) -> Result<Summary> {
    let mut summary = programs::run(other)?;
    summary.add(cargo_test(cargo_of_all("test").arg("--doc"), &[])?);
    Ok(summary)
}

/// Runs tests in Rust as `cargo test` does.
fn rust(arguments: &[String]) -> Result<Summary> {
    let mut command = match names_packages(arguments) {
        true => cargo(&["test", "--locked"]),
        false => cargo_of_all("test"),
    };
    cargo_test(&mut command, arguments)
}

/// Runs `cargo test`, and reads its lines.
fn cargo_test(command: &mut Command, arguments: &[String]) -> Result<Summary> {
    command.arg("--no-fail-fast").args(arguments);
    let mut results = Results::default();
    let status = follow(command, |line| {
        results.read(line);
        print(line)
    })?;
    let summary = results.finish();
    let status = status.context("cargo test hung")?;
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
