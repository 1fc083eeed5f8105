//! The launcher: one program, N ranks, on this machine.
//!
//! Every rank gets torchrun's environment, so that a program written for torchrun runs unchanged.
//! No rank outlives the job: each is its own process group, which the launcher kills, and each
//! dies with the launcher even if that is killed itself.

pub mod child;
pub mod elastic;
mod errors;
mod forward;
mod supervisor;

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thinwire_job::Place;
use thinwire_job::elastic::Seat;
use thinwire_link::descriptors;

use crate::place::token_or_fresh;
use errors::Errors;
pub use errors::{is_launched, leave};
use supervisor::{Action, End, Event, Supervisor};

/// A program, how many times to start it, and where its ranks meet.
struct Job {
    /// The program, and its arguments.
    command: Vec<OsString>,
    ranks: u32,
    /// Where the rendezvous store listens, as host:port.
    coordinator: String,
    token: String,
}

/// Runs a program as so many ranks to its end, with a secret or a fresh one, and gives the code to exit
/// with: 0, or 128 + signal if a signal ended it.
///
/// # Errors
/// If ranks cannot be started, or any rank fails: which one, how, and what it or its peers said.
pub fn run(command: Vec<OsString>, ranks: u32, token: Option<&String>) -> Result<u8> {
    let token = token_or_fresh(token)?;
    let (_store, coordinator) = thinwire_job::open("127.0.0.1", 0, &token)?;
    run_job(&Job { command, ranks, coordinator, token })
}

/// Makes room for the outputs of all processes that start here, and for two connections of every process.
fn reserve_descriptors(ranks: u32, servers: u32) -> Result<()> {
    let needed = 4 * u64::from(ranks + servers);
    Ok(descriptors::reserve(&format!("a job of {ranks} ranks on this machine"), needed)?)
}

fn run_job(job: &Job) -> Result<u8> {
    reserve_descriptors(job.ranks, 0)?;
    let errors = Errors::create()?;
    let torch_port = free_port()?;
    let (sender, receiver) = channel();
    watch_signals(sender.clone(), Event::Signal)?;
    let mut groups = Groups(Vec::new());
    for rank in 0..job.ranks {
        let mut command = command(job, rank, torch_port)?;
        command.env(errors::VARIABLE, errors.path(rank));
        let child = command.spawn().with_context(|| format!("starting rank {rank}"))?;
        groups.0.push(Pid::from_child(&child));
        watch(child, rank, sender.clone());
    }
    let mut supervisor = Supervisor::new(job.ranks);
    supervise(&mut supervisor, &receiver, &groups);
    errors.verdict(&supervisor, job.ranks)
}

/// Becomes `program`, as a member of an elastic job.
///
/// # Errors
/// If there is no such program.
pub fn join_elastic(seat: &Seat, program: &[OsString]) -> Result<u8> {
    child::become_program(program, seat.variables().to_vec())
}

/// Becomes `program`, as the rank that another launcher made us, in torchrun's words. Ranks meet where that
/// launcher says, or at `coordinator`.
///
/// # Errors
/// If there is no such program.
pub fn join(place: &Place, coordinator: Option<&String>, program: &[OsString]) -> Result<u8> {
    let (address, port) = place.coordinator.rsplit_once(':').unwrap_or((&place.coordinator, ""));
    let numbers = [
        ("RANK", place.rank),
        ("WORLD_SIZE", place.world),
        ("LOCAL_RANK", place.local_rank),
        ("LOCAL_WORLD_SIZE", place.local_world),
    ];
    let mut variables = numbers.map(|(name, value)| (name, value.to_string())).to_vec();
    variables.extend(coordinator.map(|address| ("THINWIRE_COORDINATOR", address.clone())));
    for (name, value) in [("MASTER_ADDR", address), ("MASTER_PORT", port)] {
        if thinwire_job::process(name).is_none() {
            variables.push((name, value.trim_matches(['[', ']']).to_owned()));
        }
    }
    child::become_program(program, variables)
}

fn command(job: &Job, rank: u32, torch_port: u16) -> Result<Command> {
    let me = std::env::current_exe().context("finding thinwire's own program file")?;
    let mut command = Command::new(me);
    command.arg(child::NAME).arg(std::process::id().to_string()).args(&job.command);
    command.process_group(0).stdin(Stdio::null());
    if rank > 0 {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let (rank, ranks) = (rank.to_string(), job.ranks.to_string());
    command
        .env("RANK", &rank)
        .env("LOCAL_RANK", &rank)
        .env("WORLD_SIZE", &ranks)
        .env("LOCAL_WORLD_SIZE", &ranks)
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", torch_port.to_string())
        .env("THINWIRE_COORDINATOR", &job.coordinator)
        .env("THINWIRE_STORE", "launcher")
        .env("THINWIRE_TOKEN", &job.token);
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        command.env("RAYON_NUM_THREADS", (cores / job.ranks as usize).max(1).to_string());
    }
    Ok(command)
}

/// A port for the program's own rendezvous, torch.distributed's for instance.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}

/// Sends what `event` makes of each signal to this process.
fn watch_signals<E: Send + 'static>(events: Sender<E>, event: fn(i32) -> E) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if events.send(event(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Passes a rank's output on and reports its end, after its last line.
fn watch(mut child: Child, rank: u32, events: Sender<Event>) {
    let prefix = format!("[rank {rank}] ");
    let outputs = [
        child.stdout.take().map(|output| forward::lines(output, prefix.clone())),
        child.stderr.take().map(|output| forward::lines(output, prefix)),
    ];
    // The supervisor is gone only when the job is over.
    watch_end(child, outputs, move |end| {
        let _ = events.send(Event::Ended { rank, end });
    });
}

/// Waits in a thread for the end of a process, and of its forwarded outputs.
fn watch_end(
    mut child: Child,
    outputs: [Option<Receiver<()>>; 2],
    report: impl FnOnce(End) + Send + 'static,
) {
    thread::spawn(move || {
        let status = child.wait();
        let end = status.map_or(End::Code(2), end_of);
        forward::drain(outputs);
        report(end);
    });
}

fn end_of(status: ExitStatus) -> End {
    match (status.signal(), status.code()) {
        (Some(signal), _) => End::Signal(signal),
        (None, code) => End::Code(code.unwrap_or(2)),
    }
}

fn supervise(supervisor: &mut Supervisor, events: &Receiver<Event>, groups: &Groups) {
    while supervisor.is_running() {
        let event = match supervisor.deadline() {
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
        };
        let event = match event {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Event::Tick,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let failed = matches!(event, Event::Ended { end, .. } if end != End::Code(0));
        if let Some(action) = supervisor.on(event, Instant::now()) {
            groups.act(action);
        }
        if failed {
            for rank in groups.stopped() {
                supervisor.on(Event::Stopped { rank }, Instant::now());
            }
        }
    }
}

/// The ranks' process groups. Whatever is left of them is killed when this is dropped.
struct Groups(Vec<Pid>);

impl Groups {
    /// The ranks that a signal has stopped, where the system says so.
    fn stopped(&self) -> Vec<u32> {
        let is_stopped = |group: &Pid| {
            let path = format!("/proc/{}/stat", group.as_raw_nonzero());
            let stat = std::fs::read_to_string(path).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
        };
        let stopped = (0..).zip(&self.0).filter(|(_, group)| is_stopped(group));
        stopped.map(|(rank, _)| rank).collect()
    }

    fn act(&self, action: Action) {
        let signal = match action {
            Action::Kill => Some(Signal::KILL),
            Action::Signal(signal) => Signal::from_named_raw(signal),
        };
        for group in &self.0 {
            if let Some(signal) = signal {
                // A group that has ended cannot be signalled, and need not be.
                let _ = kill_process_group(*group, signal);
            }
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.act(Action::Kill);
    }
}
