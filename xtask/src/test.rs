//! Every test, in Rust and in Python, with a closing count of what passed and was skipped, and why.
//!
//! A test that needs what not every machine has (root, a peer's library) carries
//! `#[ignore = "reason"]`; the reason is repeated at the end, so that nothing is skipped in silence.
//!
//! Tests that failed run once more at the end, without others beside them. If they pass, they are listed as flaky,
//! which is a fault of the tests or of what they test, and does not fail the run.

use std::process::{ExitStatus, Stdio};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, bail};

use crate::process::{cargo, cargo_of_all, follow};
use crate::python;
use crate::summary::Summary;

/// Runs all tests; with `arguments`, which go to `cargo test`, those in Rust alone.
///
/// Tests in Python run beside those in Rust, since most of a test's time is that of processes which start and wait.
pub fn run(arguments: &[String]) -> Result<()> {
    let (in_rust, in_python) = thread::scope(|scope| {
        let python = arguments.is_empty().then(|| scope.spawn(|| python::test(&[])));
        let rust = rust(arguments);
        let join = |run: ScopedJoinHandle<Result<Summary>>| run.join().expect("it does not panic");
        (rust, python.map_or_else(|| Ok(Summary::default()), join))
    });
    let (mut summary, status) = in_rust?;
    let is_explained = status.success() || !summary.failed.is_empty();
    let in_python = in_python.and_then(|mut results| {
        retry(&mut results, python::test)?;
        Ok(results)
    });
    retry(&mut summary, |names| {
        let arguments = ["--", "--exact"].map(str::to_owned).into_iter().chain(names.to_vec());
        rust(&arguments.collect::<Vec<_>>()).map(|(results, _)| results)
    })?;
    let in_python = in_python.map(|results| summary.add(results));
    eprint!("{}", summary.report());
    in_python.context("the Python tests did not run")?;
    if !is_explained {
        bail!("cargo test ended with {status}");
    }
    if !summary.failed.is_empty() {
        bail!("{} tests failed", summary.failed.len());
    }
    Ok(())
}

/// Runs the tests that failed once more, by `run`.
fn retry(summary: &mut Summary, run: impl FnOnce(&[String]) -> Result<Summary>) -> Result<()> {
    if !summary.failed.is_empty() {
        summary.retried(&run(&summary.failed)?);
    }
    Ok(())
}

/// Unit, integration and documentation tests of the workspace.
fn rust(arguments: &[String]) -> Result<(Summary, ExitStatus)> {
    let mut command = match names_packages(arguments) {
        true => cargo(&["test", "--locked"]),
        false => cargo_of_all("test"),
    };
    command.arg("--no-fail-fast").args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo test")?;
    let (mut summary, mut open) = (Summary::default(), 0_i32);
    follow(&mut child, |line| {
        read(line, &mut summary);
        open += i32::from(begins_program(line)) - i32::from(line.starts_with("test result: "));
    })?;
    // The tests that a program which crashed did not reach are in no line.
    if open > 0 {
        summary.failed.push(format!("{open} test programs that ended before their results"));
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    Ok((summary, status))
}

/// Whether cargo is told which packages to test, instead of all.
fn names_packages(arguments: &[String]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| {
        let flag = argument.split('=').next().unwrap_or(argument);
        argument.starts_with("-p") || flag == "--package" || flag == "--manifest-path"
    })
}

/// Returns whether a line is "running 4 tests", which a test program prints before its tests.
fn begins_program(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|line| line.split_once(" test"));
    count.is_some_and(|(count, _)| count.parse::<u32>().is_ok())
}

/// Reads one line of `cargo test`.
fn read(line: &str, summary: &mut Summary) {
    let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
    else {
        return;
    };
    match result.trim_end() {
        "ok" => summary.passed += 1,
        "FAILED" => summary.failed.push(name.to_owned()),
        "ignored" => summary.add(Summary::skipped(name, "no reason given")),
        other => {
            if let Some(reason) = other.strip_prefix("ignored, ") {
                summary.add(Summary::skipped(name, reason));
            }
        }
    }
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

    #[test]
    fn results_are_read_from_the_lines() {
        let mut summary = Summary::default();
        for line in [
            "running 4 tests",
            "test header::tests::a_flipped_bit_is_noticed ... ok",
            "test ring_equals_tree ... FAILED",
            "test shaped_link ... ignored, needs root for network namespaces",
            "test crates/wire/src/lib.rs - (line 7) ... ok",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored",
        ] {
            read(line, &mut summary);
        }
        assert_eq!(
            summary.report(),
            "tests: 2 passed, 1 failed, 1 skipped\n  \
             failed  ring_equals_tree\n  \
             skipped shaped_link: needs root for network namespaces\n"
        );
    }
}
