//! `thinwire coordinator`: the coordinator of an elastic job whose ranks others start.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thinwire_job::elastic::{self, Authority, Coordinator};
use thinwire_job::{Form, Given, process};

use crate::output::{print_json, say};
use crate::size::{self, Size, ensure_bounds};

/// Time that processes have to hear that the job is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// Coordinate an elastic job whose ranks are started elsewhere.
///
/// Ranks join with THINWIRE_MEMBER=new, THINWIRE_COORDINATOR and THINWIRE_TOKEN. They go on training while
/// the coordinator is away, and connect to one that is started again at the same address.
#[derive(clap::Args)]
pub struct Args {
    /// Address of this host as ranks reach it
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Keep the job's state in this file, and go on from it: then any ranks that are left can go on;
    /// without it, it takes half of the last ones
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Fewest and most ranks that train
    #[arg(long, value_name = "MIN:MAX", default_value = "1:256", value_parser = size::up_to(4096))]
    ranks: Size,
    /// The job's secret (better given as THINWIRE_TOKEN)
    #[arg(long, env = "THINWIRE_TOKEN", hide_env_values = true, value_name = "SECRET")]
    token: Option<String>,
    /// One JSON object per event on standard output
    #[arg(long)]
    json: bool,
}

/// News that reaches the command.
enum News {
    Told(elastic::Event),
    Signal(i32),
}

/// Coordinates until all steps are done, or a signal comes.
///
/// # Errors
/// If the address is taken or the state cannot be read.
pub fn run(args: &Args) -> Result<u8> {
    let ranks = ensure_bounds(args.ranks, "a coordinator")?;
    let given = Given { token: args.token.clone(), form: Form::Flags, ..Given::default() };
    let token = thinwire_job::token(&given, &args.listen, &process)?;
    let (sender, news) = channel();
    let told = sender.clone();
    let tell = move |event: &elastic::Event| {
        let _ = told.send(News::Told(event.clone()));
    };
    let authority = if args.state.is_some() { Authority::Saved } else { Authority::Unsaved };
    let options = crate::launch::elastic::options(authority, ranks.clone())?;
    let coordinator =
        Coordinator::bind(&args.listen, &token, options, args.state.as_deref(), tell)?;
    watch_signals(sender)?;
    let (min, max, address) = (ranks.start(), ranks.end(), coordinator.address());
    say(format!("coordinating {min} to {max} ranks at {address}"));
    let code = follow(&news, args.json)?;
    if let (0, Some(path)) = (code, &args.state) {
        // The next job begins anew.
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(code)
}

/// Passes events on. Returns the code to exit with: 0 once all steps are done.
fn follow(news: &Receiver<News>, json: bool) -> Result<u8> {
    let mut end: Option<Instant> = None;
    loop {
        let next = match end {
            None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(end) => news.recv_timeout(end.saturating_duration_since(Instant::now())),
        };
        match next {
            Ok(News::Told(event)) => {
                if event.json["event"] == "complete" {
                    end = Some(Instant::now() + FAREWELL);
                }
                match json {
                    true => print_json(&event.json)?,
                    false => say(event.text),
                }
            }
            Ok(News::Signal(signal)) => {
                say(
                    "ranks that train go on; until a coordinator is back none can join or leave, and a loss stops all",
                );
                return Ok(128 + signal.clamp(0, 127) as u8);
            }
            Err(_) => return Ok(0),
        }
    }
}

fn watch_signals(news: Sender<News>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let _ = news.send(News::Signal(signal));
        }
    });
    Ok(())
}
