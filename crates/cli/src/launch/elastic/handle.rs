//! The coordinator of a launcher's job: its own, or that of whichever launcher leads.

use std::path::Path;

use anyhow::Result;
use thinwire_job::elastic::{Candidate, Coordinator, Event, Id, Job, Store};

/// Address of a coordinator that only processes on this machine reach.
const HERE: &str = "127.0.0.1:0";

/// Where a job is coordinated.
#[derive(Debug)]
pub struct Site<'a> {
    /// Store of the coordinator's state, if several launchers share the job.
    pub store: Option<&'a Store>,
    /// Address of the coordinator, host:port; one on this machine unless given.
    pub address: Option<&'a str>,
    /// Secret of the job.
    pub token: &'a str,
    /// File of the state of a coordinator without a store.
    pub state: Option<&'a Path>,
}

/// The coordinator as a launcher sees it.
pub enum CoordinatorHandle {
    /// Coordinator in this launcher, which ends with it.
    Own(Coordinator),
    /// Coordinator in one of several launchers.
    Shared(Candidate),
}

impl CoordinatorHandle {
    /// Begins to coordinate a job; `tell` is called with its events.
    ///
    /// # Errors
    /// If the address is taken, or the job's store or state cannot be used.
    pub fn begin(
        site: &Site<'_>,
        job: impl Into<Job>,
        tell: impl FnMut(&Event) + Send + 'static,
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

    /// Returns the address at which members find the coordinator.
    pub fn address(&self) -> String {
        match self {
            CoordinatorHandle::Own(coordinator) => coordinator.address(),
            CoordinatorHandle::Shared(candidate) => candidate.address(),
        }
    }

    /// Notes that the process of a member has ended.
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

    /// Whether other launchers may coordinate the job.
    pub const fn is_shared(&self) -> bool {
        matches!(self, CoordinatorHandle::Shared(_))
    }
}
