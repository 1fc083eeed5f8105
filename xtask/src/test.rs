//! Every test of the workspace, with a closing count of what passed and what was skipped, and why.
//!
//! A test that needs what not every machine has (root, a peer's library) carries
//! `#[ignore = "reason"]`; the reason is repeated at the end, so that nothing is skipped in silence.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};

use crate::section::cargo;

/// Runs all tests, unit, integration and documentation; `arguments` go to `cargo test`.
pub fn run(arguments: &[String]) -> Result<()> {
    let mut command = cargo(&["test", "--locked", "--no-fail-fast"]);
    if !names_packages(arguments) {
        command.arg("--workspace");
    }
    command.args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo test")?;
    let summary = follow(&mut child)?;
    let status = child.wait().context("cannot wait for cargo test")?;
    eprint!("{}", summary.report());
    if !status.success() {
        bail!("cargo test ended with {status}");
    }
    Ok(())
}

/// Whether cargo is told which packages to test, instead of all.
fn names_packages(arguments: &[String]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| {
        let flag = argument.split('=').next().unwrap_or(argument);
        argument.starts_with("-p") || flag == "--package" || flag == "--manifest-path"
    })
}

/// Passes the child's output on, line by line, and reads the results in it.
fn follow(child: &mut Child) -> Result<Summary> {
    let output = child.stdout.take().expect("stdout was piped");
    let mut stdout = std::io::stdout().lock();
    let mut summary = Summary::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read the output of cargo test")?;
        summary.read(&String::from_utf8_lossy(&line));
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
    }
    Ok(summary)
}

/// What the lines of `cargo test` said.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<(String, String)>,
}

impl Summary {
    fn read(&mut self, line: &str) {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
        else {
            return;
        };
        match result.trim_end() {
            "ok" => self.passed += 1,
            "FAILED" => self.failed.push(name.to_owned()),
            "ignored" => self.skipped.push((name.to_owned(), "no reason given".to_owned())),
            other => {
                if let Some(reason) = other.strip_prefix("ignored, ") {
                    self.skipped.push((name.to_owned(), reason.to_owned()));
                }
            }
        }
    }

    fn report(&self) -> String {
        let Summary { passed, failed, skipped } = self;
        let mut report =
            format!("tests: {passed} passed, {} failed, {} skipped\n", failed.len(), skipped.len());
        for name in failed {
            report += &format!("  failed  {name}\n");
        }
        for (name, reason) in skipped {
            report += &format!("  skipped {name}: {reason}\n");
        }
        report
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
            summary.read(line);
        }
        assert_eq!(
            summary.report(),
            "tests: 2 passed, 1 failed, 1 skipped\n  \
             failed  ring_equals_tree\n  \
             skipped shaped_link: needs root for network namespaces\n"
        );
    }
}
