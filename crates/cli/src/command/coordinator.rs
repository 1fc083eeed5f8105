//! `thinwire coordinator`: coordinates an elastic job whose ranks are started elsewhere.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use thinwire_job::elastic::{self, CoordinatorMode, Store};
use thinwire_job::{Form, Overrides, process};

use crate::launch;
use crate::launch::elastic::{CoordinatorHandle, Site, with_servers};
use crate::metrics::{self, CoordinatorMetrics};
use crate::output::{Format, print_json, say};
use crate::size::{self, Size, ensure_bounds};

/// Time in which processes are told that the job has ended.
const FAREWELL: Duration = Duration::from_secs(5);

/// Coordinate an elastic job whose ranks are started elsewhere.
///
/// Ranks join with THINWIRE_MEMBER=new, THINWIRE_COORDINATOR and THINWIRE_TOKEN. They continue training while
/// the coordinator is away, and connect to one that is started again at the same address.
#[derive(clap::Args)]
pub struct Args {
    /// Address at which ranks reach this host
    ///
    /// With --store, the default is the address from which this host reaches etcd.
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "store")]
    listen: Option<String>,
    /// Keep the job's state in this file, and continue from it
    ///
    /// With a file, any surviving ranks can continue. Without it, half of the last epoch's ranks must survive, or
    /// more than half if the coordinator was restarted.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Keep the job's state in etcd
    ///
    /// Several coordinators may stand by for the same job with one store.
    #[arg(long, value_name = "etcd://HOST:PORT/JOB", conflicts_with = "state")]
    store: Option<Store>,
    /// Fewest and most ranks that train
    #[arg(long, value_name = "MIN:MAX", default_value = "1:256", value_parser = size::up_to(4096))]
    ranks: Size,
    /// Coordinate the servers of a parameter server, too
    ///
    /// `thinwire server` starts them elsewhere.
    #[arg(long)]
    servers: bool,
    /// Secret of the job; better as THINWIRE_TOKEN
    #[arg(long, env = "THINWIRE_TOKEN", hide_env = true, value_name = "SECRET")]
    token: Option<String>,
    /// Print one JSON object per event to standard output
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    metrics: metrics::Flags,
}

/// Event that the command handles.
enum News {
    Told(elastic::Event),
    Signal(i32),
}

/// Coordinates until all steps are done, or a signal arrives.
///
/// # Errors
/// If the address is taken, or the state cannot be read or written.
pub fn run(args: &Args) -> Result<u8> {
    let ranks = ensure_bounds(args.ranks, "a coordinator")?;
    let given = Overrides { token: args.token.clone(), form: Form::Flags, ..Overrides::default() };
    let address = args.store.as_ref().map(Store::to_string).or_else(|| args.listen.clone());
    let token = thinwire_job::token(&given, &address.unwrap_or_default(), &process)?;
    let metrics = CoordinatorMetrics::default();
    let shown = metrics.clone();
    args.metrics.export(0, move || shown.page())?;
    let (sender, news) = channel();
    let told = sender.clone();
    let tell = move |event: &elastic::Event| {
        metrics.note(event);
        let _ = told.send(News::Told(event.clone()));
    };
    let is_saved = args.state.is_some() || args.store.is_some();
    let mode = if is_saved { CoordinatorMode::Saved } else { CoordinatorMode::Unsaved };
    ensure!(
        is_saved || !args.servers,
        "--servers needs --state FILE or --store: a coordinator that forgot which server has which shard \
         would lose parameters"
    );
    let options = launch::elastic::options(mode, ranks.clone())?;
    let job = if args.servers { with_servers(options) } else { options.into() };
    let (store, address) = (args.store.as_ref(), args.listen.as_deref());
    let site = Site { store, address, token: &token, state: args.state.as_deref() };
    // It coordinates until it is dropped.
    let coordinator = CoordinatorHandle::begin(&site, job, tell)?;
    launch::watch_signals(sender, News::Signal)?;
    thinwire_job::unprotected(&token).into_iter().for_each(say);
    let (min, max, address) = (ranks.start(), ranks.end(), coordinator.address());
    say(format!("coordinating {min} to {max} ranks at {address}"));
    let code = follow(&news, args.json.into())?;
    if let (0, Some(path)) = (code, &args.state) {
        // The next job begins anew.
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(code)
}

/// Prints events. Returns the exit code, which is 0 once all steps are done.
fn follow(news: &Receiver<News>, format: Format) -> Result<u8> {
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
                match format {
                    Format::Json => print_json(&event.json)?,
                    Format::Text => say(event.text),
                }
            }
            Ok(News::Signal(signal)) => {
                say("running ranks continue; until a coordinator is back, no rank can join or \
                     leave, and the loss of a rank stops all ranks");
                return Ok(128 + signal.clamp(0, 127) as u8);
            }
            Err(_) => return Ok(0),
        }
    }
}
