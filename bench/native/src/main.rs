//! The `thinwire-bench` program: measurements of synchronisation and of codecs that develop Thinwire itself.
//!
//! Every subcommand prints one JSON object per line, which the scripts of `bench/` turn into tables. The
//! ranks of `sync` and `choice` are started by a launcher, such as `thinwire run` or `bench/network.sh`.

mod choice;
mod cores;
mod distortion;
mod job;
mod method;
mod replay;
mod shapes;
mod sync;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

/// Measures synchronisation and codecs, one JSON object per line
#[derive(Parser)]
#[command(name = "thinwire-bench", version)]
enum Command {
    /// Step time of `auto`, beside that of the fastest fixed codec within its error budget
    Choice(choice::Args),
    /// Bits and errors of codecs on recorded gradients, beside those of the best uniform quantiser
    Distortion(distortion::Args),
    /// Time that an iteration waits for its gradients, by method, on the tensors of a known model
    Sync(sync::Args),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Choice(args) => choice::run(&args),
        Command::Distortion(args) => distortion::run(&args),
        Command::Sync(args) => sync::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a value as JSON on one line.
///
/// # Errors
/// If standard output is closed.
fn print_json(value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)?;
    writeln!(std::io::stdout().lock(), "{line}").context("cannot write to standard output")
}

/// Prints a line for whoever watches, on standard error.
fn say(line: &str) {
    eprintln!("{line}");
}
