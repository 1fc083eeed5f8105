//! Elastic jobs: a coordinator, and the processes of members on this machine.
//!
//! Members find each other through the coordinator, which forms the epochs. The launcher tells the
//! coordinator when a process has ended, and starts processes for missing members. Members started by hand
//! may also join.

mod children;
mod servers;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::mpsc::channel;

use anyhow::Result;
use thinwire_job::elastic::{
    self, Candidate, Coordinator, CoordinatorMode, Id, JobAddress, NUMBER, Options, Store,
};
pub use thinwire_job::supervisor::Shutdown;
use thinwire_job::supervisor::{Event, Limits, Loss, Others};

use self::children::Children;
use self::servers::Servers;
pub use self::servers::with_servers;
use super::launcher::{self, Job, Report};
use super::process::{CommandLine, Variables, reserve_descriptors, watch_signals};
use crate::output::say;
use crate::place::token_or_fresh;
use crate::size;

/// Coordinator of an elastic job, and its members as their launcher knows them.
pub struct Elastic {
    /// The coordinator.
    pub coordinator: CoordinatorHandle,
    /// Members started by the launcher.
    pub children: Children,
    /// Servers, which end with the launcher.
    pub servers: Servers,
    /// Whether a replacement of a rank that died could take part, so that hints advise starting one.
    pub replaces: bool,
    token: String,
}

impl Elastic {
    /// Returns the variables with a new member's job address and its place among the members of this machine.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn variables(&mut self, number: u32) -> Result<Variables> {
        let job_address = JobAddress::new(self.coordinator.address(), self.token.clone())?;
        let mut variables = job_address.variables().to_vec();
        variables.push(("LOCAL_RANK", self.children.start(job_address.id).to_string()));
        variables.push((NUMBER, number.to_string()));
        Ok(variables)
    }
}

/// Returns the options of an elastic job. A member counts as lost after a silence of
/// THINWIRE_HEARTBEAT_TIMEOUT_S, or else of two seconds.
///
/// # Errors
/// If the variable is not a time of at least one second.
pub fn options(mode: CoordinatorMode, ranks: RangeInclusive<u32>) -> Result<Options> {
    let usual = Options::new(mode, *ranks.start(), *ranks.end());
    let silence = thinwire_job::silence(usual.silence, &thinwire_job::process)?;
    Ok(Options { silence, ..usual })
}

/// Runs a program as the members of an elastic job until the job ends, with the secret `token` or a new one.
/// Returns the exit code: 0, or 128 + signal if a signal ended the job. `shutdown` defines how a signal to
/// the launcher ends the members.
///
/// # Errors
/// If members cannot be started, or the job fails: the failed member, its exit and its error message.
pub fn run(
    command: CommandLine,
    job: &size::Elastic,
    token: Option<&String>,
    shutdown: Shutdown,
) -> Result<u8> {
    let (sender, reports) = channel();
    let secret = match &job.store {
        // All launchers of a job have the same one.
        Some(_) => token.cloned().unwrap_or_default(),
        None => token_or_fresh(token)?,
    };
    // Only ranks that start here are certain to come.
    reserve_descriptors(job.here.min(*job.ranks.end()), job.servers)?;
    let options = options(CoordinatorMode::Saved, job.ranks.clone())?;
    let options = Options { silence: job.silence.unwrap_or(options.silence), ..options };
    let options = if job.servers > 0 { with_servers(options) } else { options.into() };
    let (store, address) = (job.store.as_ref(), job.coordinator.as_deref());
    let site = Site { store, address, token: &secret, state: None };
    // The launcher is gone only when the job is over.
    let (told, ends) = (sender.clone(), sender.clone());
    let tell = move |event: &elastic::Event| drop(told.send(Report::Told(event.clone())));
    let coordinator = CoordinatorHandle::begin(&site, options, tell)?;
    watch_signals(sender.clone(), |signal| Report::Local(Event::Signal(signal)))?;
    let address = coordinator.address();
    say(invitation(job, &address, token));
    let servers = Servers::start(job, &address, &secret, &command, move |number, end| {
        drop(ends.send(Report::Server(number, end)));
    })?;
    let limits = Limits {
        ranks: job.ranks.clone(),
        restarts: job.restarts,
        here: job.here,
        others: if coordinator.is_shared() { Others::May } else { Others::Shown },
        loss: Loss::Survivable,
        shutdown,
    };
    let (children, replaces, token) = (Children::default(), job.replaces, secret);
    let job = Elastic { coordinator, children, servers, replaces, token };
    launcher::run(command, limits, Job::Elastic(Box::new(job)), sender, &reports)
}

/// Returns the line that tells users how to join the job. The secret was given by the user if there is a
/// `token`.
fn invitation(job: &size::Elastic, address: &str, token: Option<&String>) -> String {
    let (min, max) = (job.ranks.start(), job.ranks.end());
    let variable = elastic::VARIABLE;
    match token.filter(|token| !token.is_empty()) {
        Some(_) => format!(
            "elastic job of {min} to {max} ranks: another rank joins with {variable}=new \
             THINWIRE_COORDINATOR={address} and the same THINWIRE_TOKEN"
        ),
        None => format!(
            "elastic job of {min} to {max} ranks at {address}: set a THINWIRE_TOKEN of your own \
             to let processes on other machines join"
        ),
    }
}

/// Address of a coordinator that only processes on this machine can reach.
const HERE: &str = "127.0.0.1:0";

/// Address and storage of a job's coordinator.
#[derive(Debug)]
pub struct Site<'a> {
    /// Store of the coordinator's state, if several launchers share the job.
    pub store: Option<&'a Store>,
    /// Address of the coordinator, host:port. By default it is on this machine.
    pub address: Option<&'a str>,
    /// Secret of the job.
    pub token: &'a str,
    /// File with the state of a coordinator without a store.
    pub state: Option<&'a Path>,
}

/// Coordinator of an elastic job, as used by a launcher.
pub enum CoordinatorHandle {
    /// Coordinator in this launcher, which ends with it.
    Own(Coordinator),
    /// Coordinator in one of several launchers.
    Shared(Candidate),
}

impl CoordinatorHandle {
    /// Starts to coordinate a job. `tell` is called for each event.
    ///
    /// # Errors
    /// If the address is taken, or the job's store or state cannot be used.
    pub fn begin(
        site: &Site<'_>,
        job: impl Into<elastic::Job>,
        tell: impl FnMut(&elastic::Event) + Send + 'static,
    ) -> Result<CoordinatorHandle> {
        let Site { store, address, token, state } = *site;
        Ok(match store {
            Some(store) => {
                CoordinatorHandle::Shared(Candidate::begin(store, address, token, job, tell)?)
            }
            None => {
                let address = address.unwrap_or(HERE);
                CoordinatorHandle::Own(Coordinator::bind(address, token, job, state, tell)?)
            }
        })
    }

    /// Returns the address at which members reach the coordinator.
    pub fn address(&self) -> String {
        match self {
            CoordinatorHandle::Own(coordinator) => coordinator.address(),
            CoordinatorHandle::Shared(candidate) => candidate.address(),
        }
    }

    /// Tells the coordinator that a member's process has ended.
    pub fn ended(&self, id: Id) {
        match self {
            CoordinatorHandle::Own(coordinator) => coordinator.ended(id),
            CoordinatorHandle::Shared(candidate) => candidate.ended(id),
        }
    }

    /// Lets all members leave.
    pub fn stop(&self) {
        match self {
            CoordinatorHandle::Own(coordinator) => coordinator.stop(),
            CoordinatorHandle::Shared(candidate) => candidate.stop(),
        }
    }

    /// Returns whether other launchers may coordinate the job.
    pub const fn is_shared(&self) -> bool {
        matches!(self, CoordinatorHandle::Shared(_))
    }
}
