//! `thinwire server stats`: the servers of a job at this moment.

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use crate::command::top::{State, servers};
use crate::failure::hinted;
use crate::operator::Flags;
use crate::output::{print, print_json};

/// Show the servers of a job, as they told its coordinator within the last seconds.
#[derive(clap::Args)]
pub struct Args {
    /// The servers' state as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    operator: Flags,
}

/// Asks the coordinator and shows what it says of the servers.
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
