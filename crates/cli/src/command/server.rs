//! `thinwire server`: runs one server of a parameter server. `stats` shows all servers of a job.

mod stats;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Subcommand;
use thinwire_checkpoint::Location;
use thinwire_job::elastic::{self, JobAddress};
use thinwire_job::{Form, Interrupt, Overrides, process, seen_by_others};
use thinwire_link::Bandwidth;
use thinwire_link::tcp::address_towards;
use thinwire_report::figures::parse_bytes;
use thinwire_server::{Limits, MemoryLimit, Server, ServerOptions};

use crate::failure::hinted;
use crate::launch::is_launched;
use crate::metrics;
use crate::output::say;
use crate::training::ensure_snapshots;

/// Interval at which the command checks for signals and for the end of the job.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Keep a part of a job's parameters: apply the gradients that ranks push, and answer their pulls.
///
/// The job's coordinator (`thinwire coordinator --servers`, or that of `thinwire train --mode server`) assigns
/// shards to the server. SIGTERM or Ctrl-C makes it leave; its rows survive only if the job has replicas.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// The job's coordinator or store [default: THINWIRE_COORDINATOR]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// Address of this server [default: a free port]
    ///
    /// Ranks and other servers reach it there. The default host is the address from which this machine reaches the
    /// coordinator. The default port is THINWIRE_PORT, which ranks and servers of this machine share, or a free port
    /// if that is not set.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Secret of the job; better as THINWIRE_TOKEN
    #[arg(long, env = "THINWIRE_TOKEN", hide_env = true, value_name = "SECRET")]
    token: Option<String>,
    /// Folder of the job's snapshots [default: none are taken]
    ///
    /// All servers share it. It may be s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR")]
    snapshot_dir: Option<PathBuf>,
    /// Snapshot or safetensors file to begin with
    ///
    /// The server begins with the rows of this snapshot, with the rows of the newest snapshot in this
    /// folder, or with the values of this safetensors file. The job's ranks must be given the same
    /// --restore.
    #[arg(long, value_name = "PATH")]
    restore: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitFlags,
    #[command(flatten)]
    metrics: metrics::Flags,
}

/// Limits of the server.
#[derive(clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Limits")]
struct LimitFlags {
    /// Memory of rows, such as 2GB [default: no limit]
    ///
    /// Rows beyond the limit are evicted to a file in --spill-dir.
    #[arg(long, value_name = "BYTES", requires = "spill_dir", value_parser = parse_bytes)]
    memory: Option<u64>,
    /// With --memory, folder for evicted rows, on a disk
    ///
    /// The file has no name, and disappears when the server ends.
    #[arg(long, value_name = "DIR", requires = "memory")]
    spill_dir: Option<PathBuf>,
    /// Rate of each client, such as 800mbit [default: no limit]
    ///
    /// Covers its requests and their answers; a client that sends faster is slowed down.
    #[arg(long, value_name = "BANDWIDTH")]
    client_rate: Option<Bandwidth>,
}

impl LimitFlags {
    fn resolve(&self) -> Limits {
        let (memory, folder) = (self.memory, self.spill_dir.clone());
        let memory = memory.zip(folder);
        Limits {
            memory: memory.map(|(bytes_max, folder)| MemoryLimit { bytes_max, folder }),
            client_rate: self.client_rate,
            free_bytes: crate::memory::free(),
        }
    }
}

/// Subcommands of `thinwire server`.
#[derive(Subcommand)]
enum What {
    /// Show the servers of a job: rows, memory, requests and staleness
    Stats(stats::Args),
}

/// Serves until the job ends or a signal arrives.
///
/// # Errors
/// If the coordinator cannot be reached or has no servers, the address is taken, the initial files are
/// missing or do not match, or the disk of evicted rows fails.
pub fn run(args: &Args) -> Result<u8> {
    match &args.what {
        Some(What::Stats(args)) => stats::run(args),
        None => serve(args),
    }
}

fn serve(args: &Args) -> Result<u8> {
    args.snapshot_dir.as_deref().map_or(Ok(()), ensure_snapshots)?;
    let interrupt = Interrupt::listen()?;
    let job_address = job_address(args)?;
    let listen = args.listen.clone().map_or_else(|| usual_address(&job_address.coordinator), Ok)?;
    let shown = Arc::new(OnceLock::<Weak<Server>>::new());
    let there = Arc::clone(&shown);
    let page = move || metrics::server_page(there.get().and_then(Weak::upgrade).as_deref());
    args.metrics.export_at_next(page)?;
    let options = ServerOptions {
        limits: args.limits.resolve(),
        snapshots: args.snapshot_dir.clone().map(Location::from),
        restore: args.restore.clone().map(Location::from),
    };
    let port = thinwire_job::port(None, &process)?;
    let settings = thinwire_job::Settings { port, ..thinwire_job::Settings::default() };
    let server = Server::with_options(&job_address, &listen, &settings, options)?;
    let server = Arc::new(server);
    shown.get_or_init(|| Arc::downgrade(&server));
    interrupt.remember();
    if !is_launched() {
        say(format!("serving the job at {} from {}", job_address.coordinator, server.address()));
    }
    loop {
        if interrupt.signal().is_some() {
            server.leave();
            return Ok(interrupt.exit_code());
        }
        server.notice().into_iter().for_each(say);
        if let Some(error) = server.exclusion() {
            return Err(error.into());
        }
        if let Some(reason) = server.refusal() {
            return Err(anyhow!("the coordinator refuses this server: {reason}"));
        }
        if let Some(reason) = server.failure() {
            let error = anyhow!(
                "this server has left the job because it can no longer keep its rows: {reason}"
            );
            return Err(hinted(error, "start another server with more memory or a larger disk"));
        }
        if server.is_over() {
            return Ok(0);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns this machine's address as the coordinator sees it, with port 0.
fn usual_address(coordinator: &str) -> Result<String> {
    let unknown = || {
        let error = anyhow!("cannot derive the address of this server from {coordinator}");
        hinted(error, "give --listen HOST:PORT")
    };
    let mut address = Err(unknown());
    // A name may have an address of a family to which this machine has no way.
    for towards in coordinator.to_socket_addrs().map_err(|_| unknown())? {
        address = address_towards(towards).map_err(anyhow::Error::from);
        if address.is_ok() {
            break;
        }
    }
    let address = seen_by_others(coordinator, address?);
    Ok(SocketAddr::from((address, 0)).to_string())
}

/// Returns the job address that a launcher passed to this server, or a new one.
fn job_address(args: &Args) -> Result<JobAddress> {
    let given = Overrides {
        coordinator: args.coordinator.clone(),
        token: args.token.clone(),
        form: Form::Flags,
        ..Overrides::default()
    };
    if let Some(job_address) =
        elastic::job_address(&given, &process)?.filter(|job_address| job_address.id.is_server())
    {
        return Ok(job_address);
    }
    let coordinator = given.coordinator.clone().or_else(|| process("THINWIRE_COORDINATOR"));
    let coordinator = coordinator.ok_or_else(|| {
        hinted(
            anyhow!("no coordinator for this server"),
            "give its address: --coordinator HOST:PORT, or THINWIRE_COORDINATOR",
        )
    })?;
    let token = thinwire_job::token(&given, &coordinator, &process)?;
    Ok(JobAddress::server(coordinator, token)?)
}
