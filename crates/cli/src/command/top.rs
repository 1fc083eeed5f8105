//! `thinwire top`: the ranks of an elastic job at this moment.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::operator::Flags;
use crate::output::{print, print_json};
use crate::table::Table;

/// Show the ranks of an elastic job, and what they are doing.
#[derive(clap::Args)]
pub struct Args {
    /// Show it again after this many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: Option<u64>,
    /// The job's state as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    operator: Flags,
}

/// Asks the coordinator and prints what it says.
///
/// # Errors
/// If the coordinator cannot be reached.
pub fn run(args: &Args) -> Result<u8> {
    let mut operator = args.operator.connect()?;
    loop {
        let status: Value = serde_json::from_str(&operator.status()?)
            .context("reading the coordinator's answer")?;
        match args.json {
            true => print_json(&status)?,
            false => print(text(&status))?,
        }
        let Some(seconds) = args.every else { return Ok(0) };
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// Returns a line about the job and a table of its processes.
fn text(status: &Value) -> String {
    let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
    let newcomers = status["newcomers"].as_array().map_or(&[][..], Vec::as_slice);
    let mut line = format!(
        "epoch {}: {} of {} ranks, {} to {} allowed",
        status["epoch"],
        members.len(),
        status["target"],
        status["min"],
        status["max"],
    );
    if let Some(reason) = status["waiting"].as_str() {
        line.push_str(&format!("; waiting: {reason}"));
    }
    if let Some(end) = status["end"].as_str() {
        line.push_str(&format!("; over: {end}"));
    }
    let mut table = Table::new(["rank", "process", "standing", "step", "figures"]);
    for process in members.iter().chain(newcomers) {
        let fields = ["rank", "id", "standing", "step", "figures"];
        table.row(fields.map(|field| shown(&process[field])));
    }
    format!("{line}\n{table}")
}

/// Returns a value as people read it: an object as its fields, nothing as a dash.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect();
            fields.join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_a_line_and_a_table() {
        let member = json!({
            "id": "00000000000000aa", "rank": 0, "standing": "running", "step": 7,
            "figures": { "loss": 2.5, "tokens/s": 900 },
        });
        let newcomer = json!({
            "id": "00000000000000bb", "rank": null, "standing": "newcomer", "step": null,
            "figures": null,
        });
        let status = json!({
            "epoch": 2, "step": 5, "target": 2, "min": 1, "max": 3, "waiting": null, "end": null,
            "members": [member], "newcomers": [newcomer],
        });
        let found = text(&status);
        let lines: Vec<&str> = found.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "epoch 2: 1 of 2 ranks, 1 to 3 allowed");
        assert!(lines.iter().any(|line| line.contains("loss 2.5, tokens/s 900")), "{found}");
        assert!(lines.last().unwrap().contains("newcomer"), "{found}");
    }
}
