//! `thinwire server stats`: shows figures of all servers of a job.

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::command::top::{State, servers};
use crate::failure::hinted;
use crate::operator::Flags;
use crate::output::{print, print_json};

/// Show the servers of a job, as reported to its coordinator in the last few seconds.
#[derive(clap::Args)]
pub struct Args {
    /// Print the servers' state as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    operator: Flags,
}

/// Requests the coordinator's state and shows the servers in it.
///
/// # Errors
/// If the coordinator cannot be reached, or the job has no servers.
pub fn run(args: &Args) -> Result<u8> {
    let answer = args.operator.connect()?.status()?;
    let value: Value = serde_json::from_str(&answer).context("reading the coordinator's answer")?;
    if value["servers"].is_null() {
        let error = anyhow!("the job has no parameter server");
        return Err(hinted(error, "thinwire top shows its ranks"));
    }
    if args.json {
        print_json(&value["servers"])?;
        return Ok(0);
    }
    let state = State::of(value)?;
    let lines = state.servers.as_ref().map_or(Vec::new(), servers::lines);
    print(lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    Ok(0)
}
