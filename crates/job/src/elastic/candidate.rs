//! Candidates: processes that can host a job's coordinator. A store determines which of them does.
//!
//! The candidate that leads keeps a lease alive. The others watch the coordinator, and report what it
//! decides. If the leader's process ends, its machine refuses connections at once, and another candidate
//! leads without waiting for the lease. After any other loss, the others wait until the lease has run out.

mod leader_election;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use thinwire_member::{CoordinatorMode, Id};

use super::coordinator::Coordinator;
use super::etcd::Directory;
use super::event::Event;
use super::store::Store;
use super::views::Job;
use crate::error::Error;
use crate::rendezvous::secret;
use leader_election::{LeaderElection, Place};

/// Longest wait for the first answer of a store.
const PATIENCE: Duration = Duration::from_secs(3);

/// One of several processes that can host the coordinator of an elastic job. If it leads and is dropped,
/// another one leads.
pub struct Candidate {
    store: Store,
    hosted: Arc<HostedCoordinator>,
    thread: Option<JoinHandle<()>>,
}

/// The coordinator in this process, while it hosts one.
#[derive(Debug, Default)]
struct HostedCoordinator {
    coordinator: Mutex<Option<Coordinator>>,
    is_over: AtomicBool,
}

impl HostedCoordinator {
    fn lock(&self) -> MutexGuard<'_, Option<Coordinator>> {
        self.coordinator.lock().expect("no holder panics")
    }

    /// Returns whether the candidate was dropped.
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Candidate {
    /// Begins to lead the job in `store`, or to follow its leader. The coordinator listens at `listen`, the
    /// host:port at which processes reach it; without it, at the address from which this machine reaches the
    /// store.
    ///
    /// `tell` is called with every event, from other threads, and must not block.
    ///
    /// # Errors
    /// If the store does not answer or asks for TLS or a user, the token is missing or too short, or the
    /// mode of the job is not [`CoordinatorMode::Saved`].
    pub fn begin(
        store: &Store,
        listen: Option<&str>,
        token: &str,
        job: impl Into<Job>,
        tell: impl FnMut(&Event) + Send + 'static,
    ) -> Result<Candidate, Error> {
        let job = job.into();
        job.check()?;
        // Whoever leads next continues from the saved state.
        if job.workers.mode != CoordinatorMode::Saved {
            return Err(Error::invalid("mode of a candidate is not CoordinatorMode::Saved"));
        }
        // A wrong token is refused now, and not only when this process leads.
        secret(token, &store.to_string())?;
        let mut directory = Directory::new(store);
        directory.wait(PATIENCE)?;
        let listen = listen.map_or_else(|| directory.own_address(), |it| Ok(it.to_owned()))?;
        let hosted = Arc::new(HostedCoordinator::default());
        let tell = Arc::new(Mutex::new(tell));
        let place = Place { listen, token: token.to_owned() };
        let leader_election = LeaderElection::new(directory, place, job, Arc::clone(&hosted), tell);
        let thread = thread::Builder::new()
            .name("thinwire candidate".to_owned())
            .spawn(move || leader_election.run())
            .map_err(|error| Error::because("starting the thread of a candidate", error))?;
        Ok(Candidate { store: store.clone(), hosted, thread: Some(thread) })
    }

    /// Returns the address at which processes find the coordinator, whoever hosts it.
    pub fn address(&self) -> String {
        self.store.to_string()
    }

    /// Reports that the process `id` has ended, if the coordinator is in this process. Any other
    /// coordinator learns of the loss from the process's peers.
    pub fn ended(&self, id: Id) {
        self.hosted.lock().iter().for_each(|coordinator| coordinator.ended(id));
    }

    /// Lets all processes leave, if this process leads.
    pub fn stop(&self) {
        self.hosted.lock().iter().for_each(Coordinator::stop);
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.hosted.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
