//! `thinwire doctor`: whether jobs can start on this machine, and what they would choose.
//!
//! Every check is one finding: what was found, and what to do where it is not fine. An obstacle to a
//! job is an error, and makes the exit code 1; a surprise to its user is a note.

mod finding;
mod job;
mod machine;
mod software;

use anyhow::Result;

use crate::output::{Format, print, print_json};
use crate::place::Flags;
use finding::{Finding, Severity};

/// Check this machine for problems that would keep a job from starting, and show what a job would choose.
///
/// Give the flags that the ranks will be started with. The exit code is 1 if they could not start.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Flags,
    /// One JSON object per finding
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Checks, and prints the findings.
///
/// # Errors
/// If standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let checks: [&dyn Fn() -> Vec<Finding>; 3] =
        [&machine::findings, &software::findings, &|| job::findings(&args.place)];
    let mut code = 0;
    for check in checks {
        for finding in check() {
            match args.json.into() {
                Format::Json => print_json(&finding)?,
                Format::Text => print(finding.line())?,
            }
            if finding.severity == Severity::Error {
                code = 1;
            }
        }
    }
    Ok(code)
}
