//! `thinwire top`: an elastic job at this moment, or while it runs.

mod links;
mod screen;
pub mod servers;
mod state;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::operator::Flags;
use crate::output::{draw, print, print_json, say};
use crate::units;
use screen::{Size, clipped, screen};
pub use state::State;

/// Interval at which a terminal is drawn anew.
const EVERY: Duration = Duration::from_secs(1);
/// Characters in a line where there is no terminal.
const COLUMNS: usize = 80;

/// Show an elastic job: its ranks, its servers, its links, how gradients travel, and where the time of a step
/// goes.
///
/// On a terminal, it is redrawn every second until the job is over or Ctrl-C is pressed. Elsewhere, and with --once
/// or --json, it is printed once, unless --every is given.
#[derive(clap::Args)]
pub struct Args {
    /// Interval between updates [default: 1s on a terminal]
    #[arg(long, value_name = "TIME", value_parser = units::time(1..=86_400))]
    every: Option<Duration>,
    /// Show it once, on a terminal too
    #[arg(long, conflicts_with = "every")]
    once: bool,
    /// Print the job's state as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    operator: Flags,
}

/// Asks the coordinator and shows what it says, until the job is over.
///
/// # Errors
/// If the coordinator cannot be reached.
pub fn run(args: &Args) -> Result<u8> {
    let mut operator = args.operator.connect()?;
    let mut answer = operator.status()?;
    loop {
        let is_over = show(args, &answer)?;
        let Some(pause) = pause(args).filter(|_| !is_over) else { return Ok(0) };
        std::thread::sleep(pause);
        answer = match operator.status() {
            Ok(answer) => answer,
            Err(_) => {
                say("the coordinator does not answer: connecting again");
                operator = args.operator.connect()?;
                operator.status()?
            }
        };
    }
}

/// Returns the time until the screen is shown again; none if it is shown once.
fn pause(args: &Args) -> Option<Duration> {
    args.every.or_else(|| (is_drawn(args) && !args.once).then_some(EVERY))
}

/// Returns whether each screen takes the place of the one before.
fn is_drawn(args: &Args) -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !args.json && !args.once && !is_dumb && std::io::stdout().is_terminal()
}

/// Shows the coordinator's answer; returns whether the job is over.
fn show(args: &Args, answer: &str) -> Result<bool> {
    let value: Value = serde_json::from_str(answer).context("reading the coordinator's answer")?;
    let is_over = value["end"].is_string();
    if args.json {
        return print_json(&value).map(|()| is_over);
    }
    let state = State::of(value)?;
    let size = size();
    let text = screen(&state, size.columns);
    match is_drawn(args) {
        true => draw(clipped(&text, size))?,
        false => print(text)?,
    }
    Ok(is_over)
}

/// Returns the size of the terminal.
fn size() -> Size {
    let found = tcgetwinsize(std::io::stdout()).ok();
    let found = found.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    found.map_or(Size { columns: COLUMNS, rows: usize::MAX }, |size| Size {
        columns: size.ws_col.into(),
        rows: size.ws_row.into(),
    })
}
