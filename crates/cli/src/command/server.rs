//! `thinwire server`: one server of a parameter server, or what all of a job's are doing.

mod stats;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Subcommand;
use thinwire_job::elastic::{self, Seat};
use thinwire_job::{Form, Given, process};
use thinwire_link::Bandwidth;
use thinwire_link::tcp::address_towards;
use thinwire_server::{Limits, MemoryLimit, Server, ServerOptions};

use crate::failure::hinted;
use crate::figures::parse_bytes;
use crate::launch::is_launched;
use crate::metrics;
use crate::output::say;
use crate::training::Interrupt;

/// Interval at which the command looks for signals and for the end of the job.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Keep a part of a job's parameters: apply the gradients that ranks push, and answer their pulls.
///
/// A server gets its shards from the job's coordinator (`thinwire coordinator --servers`, or `thinwire train
/// --mode server`). SIGTERM or Ctrl-C makes it leave; a copy of each of its shards is elsewhere if the job has
/// replicas.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Address of the job's coordinator, or the store that knows it [default: THINWIRE_COORDINATOR]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Address at which ranks and other servers reach this one [default: that by which it reaches the
    /// coordinator]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// The job's secret (better given as THINWIRE_TOKEN)
    #[arg(long, env = "THINWIRE_TOKEN", hide_env_values = true, value_name = "SECRET")]
    token: Option<String>,
    /// Where snapshots of the job go, a folder that all servers share [default: the job makes none]
    #[arg(long, value_name = "FOLDER")]
    snapshot_dir: Option<PathBuf>,
    /// Go on from this snapshot, or from the newest in this folder, as the job's ranks do
    #[arg(long, value_name = "SNAPSHOT")]
    restore: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    metrics: metrics::Flags,
}

/// Limits of the server.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
struct LimitFlags {
    /// Memory that rows may take, such as 2GB; the rows that were touched least lately go to a file
    /// [default: no limit]
    #[arg(long, value_name = "BYTES", requires = "spill_dir", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// With --memory, folder of that file, on a disk; it has no name and vanishes with the server
    #[arg(long, value_name = "FOLDER", requires = "memory")]
    spill_dir: Option<PathBuf>,
    /// Rate of each client's requests with their answers, such as 800mbit; whoever sends more is read from
    /// more slowly [default: no limit]
    #[arg(long, value_name = "RATE")]
    client_rate: Option<Bandwidth>,
}

impl LimitFlags {
    fn resolve(&self) -> Limits {
        let (memory, folder) = (self.memory, self.spill_dir.clone());
        let memory = memory.zip(folder);
        Limits {
            memory: memory.map(|(bytes_max, folder)| MemoryLimit { bytes_max, folder }),
            client_rate: self.client_rate,
        }
    }
}

/// Other things to do than to serve.
#[derive(Subcommand)]
enum What {
    /// Show the servers of a job: rows, memory, requests and staleness
    Stats(stats::Args),
}

/// Serves until the job is over, or a signal comes.
///
/// # Errors
/// If the coordinator cannot be reached or has no servers, the address is taken, or the disk of rows beyond
/// the limit of memory fails.
pub fn run(args: &Args) -> Result<u8> {
    match &args.what {
        Some(What::Stats(args)) => stats::run(args),
        None => serve(args),
    }
}

fn serve(args: &Args) -> Result<u8> {
    let interrupt = Interrupt::listen()?;
    let seat = seat(args)?;
    let listen = args.listen.clone().map_or_else(|| usual_address(&seat.coordinator), Ok)?;
    let shown = Arc::new(OnceLock::<Weak<Server>>::new());
    let there = Arc::clone(&shown);
    args.metrics
        .show(0, move || metrics::server_page(there.get().and_then(Weak::upgrade).as_deref()))?;
    let options = ServerOptions {
        limits: args.limits.resolve(),
        snapshots: args.snapshot_dir.clone(),
        restore: args.restore.clone(),
    };
    let settings = thinwire_job::Settings::default();
    let server = Server::with_options(&seat, &listen, &settings, options)?;
    let server = Arc::new(server);
    shown.get_or_init(|| Arc::downgrade(&server));
    interrupt.remember();
    if !is_launched() {
        say(format!("serving the job at {} from {}", seat.coordinator, server.address()));
    }
    loop {
        if interrupt.signal().is_some() {
            server.leave();
            return Ok(interrupt.exit_code());
        }
        server.news().into_iter().for_each(say);
        if let Some(error) = server.exclusion() {
            return Err(error.into());
        }
        if let Some(reason) = server.refusal() {
            return Err(anyhow!("the coordinator refuses this server: {reason}"));
        }
        if let Some(reason) = server.failure() {
            let error = anyhow!(
                "this server has left the job, as it can keep its rows no longer: {reason}"
            );
            return Err(hinted(error, "start another one with more memory or a larger disk"));
        }
        if server.is_over() {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns this machine's address towards the coordinator, with any free port.
fn usual_address(coordinator: &str) -> Result<String> {
    let unknown = || {
        let error = anyhow!("the address of this server does not follow from {coordinator}");
        hinted(error, "give it: --listen HOST:PORT")
    };
    let address = coordinator.to_socket_addrs().ok().and_then(|mut all| all.next());
    let address = address_towards(address.ok_or_else(unknown)?)?;
    Ok(SocketAddr::from((address, 0)).to_string())
}

/// The seat that a launcher gave to this server, or a new one.
fn seat(args: &Args) -> Result<Seat> {
    let given = Given {
        coordinator: args.coordinator.clone(),
        token: args.token.clone(),
        form: Form::Flags,
        ..Given::default()
    };
    if let Some(seat) = elastic::seat(&given, &process)?.filter(|seat| seat.id.is_server()) {
        return Ok(seat);
    }
    let coordinator = given.coordinator.clone().or_else(|| process("THINWIRE_COORDINATOR"));
    let coordinator = coordinator.ok_or_else(|| {
        hinted(
            anyhow!("no coordinator for this server"),
            "give its address: --coordinator HOST:PORT, or THINWIRE_COORDINATOR",
        )
    })?;
    let token = thinwire_job::token(&given, &coordinator, &process)?;
    Ok(Seat::server(coordinator, token)?)
}
