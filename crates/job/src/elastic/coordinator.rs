//! The coordinator of an elastic job, as the process that hosts it sees it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use thinwire_link::Deadline;
use thinwire_link::descriptors;
use thinwire_link::endpoint::{Endpoint, Node};
use thinwire_member::{Id, Options, Roster};

use super::envelope::End;
use super::event::Event;
use super::persistence::{FileRegistry, Persistence};
use super::roles::{CoordinatorState, RoleRegistry};
use super::service::{CoordinatorService, Tell};
use super::views::Job;
use crate::error::Error;
use crate::rendezvous::serve;

/// The coordinator of an elastic job and the store where its ranks meet, on one port. It ends when it is
/// dropped; its members then continue to train, and connect to the next coordinator at the same address.
pub struct Coordinator {
    server: Endpoint<CoordinatorService>,
    address: String,
    target: Arc<AtomicU32>,
}

impl Coordinator {
    /// Listens on `address`, the host:port at which processes reach it (port 0 for any that is free).
    ///
    /// With a `state` file, the coordinator continues from the state in the file, and saves its state
    /// there. Without a file, the mode decides. With
    /// [`CoordinatorMode::Saved`](thinwire_member::CoordinatorMode::Saved), the coordinator founds a job at
    /// once, since no other coordinator can exist. With
    /// [`CoordinatorMode::Unsaved`](thinwire_member::CoordinatorMode::Unsaved), it first waits to see
    /// whether processes of a running job connect.
    ///
    /// `tell` is called with every event, from the coordinator's thread, and must not block.
    ///
    /// # Errors
    /// If the address is unknown or taken; if the token is missing or too short for a job beyond this
    /// machine; if the file cannot be read or written, or does not contain a state of a coordinator.
    pub fn bind(
        address: &str,
        token: &str,
        job: impl Into<Job>,
        state: Option<&Path>,
        tell: impl FnMut(&Event) + Send + 'static,
    ) -> Result<Coordinator, Error> {
        let mut job = job.into();
        job.check()?;
        let persistence = match state {
            Some(path) => Persistence::to(FileRegistry::open(path)?),
            None => Persistence::default(),
        };
        Coordinator::begin(address, token, &mut job, persistence, Box::new(tell))
    }

    /// Listens on an address with a token, and continues with a state.
    pub(super) fn begin(
        address: &str,
        token: &str,
        job: &mut Job,
        mut persistence: Persistence,
        mut tell: Tell,
    ) -> Result<Coordinator, Error> {
        // Each process has a connection of its own, and one more while it meets the others. Not all need come.
        let _ = descriptors::reserve("a coordinator", 2 * u64::from(job.workers.max));
        let roles = RoleRegistry::begin(&mut persistence, job)?;
        persistence.check()?;
        if let (Some(place), None) = (persistence.place(), persistence.over()) {
            for (role, epoch) in roles.epochs() {
                tell(&Event::resumed(role, &place, epoch.number));
            }
        }
        let target = Arc::new(AtomicU32::new(0));
        let service =
            CoordinatorService::new(roles, persistence, Arc::clone(&target), tell, Instant::now());
        let (server, address) = serve(address, token, service)?;
        Ok(Coordinator { server, address, target })
    }

    /// Returns the address at which processes reach the coordinator, as host:port.
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Reports that the process `id` has ended, so that it counts as lost at once, not after the
    /// heartbeat timeout.
    pub fn ended(&self, id: Id) {
        self.server.call(move |service, now, out| service.ended(id, now, out));
    }

    /// Sets the number of ranks that the job should have.
    ///
    /// # Errors
    /// If the job's limits exclude it, the job has not begun or is over, or its state cannot be saved.
    pub fn resize(&self, target: u32) -> Result<(), Error> {
        let (sender, receiver) = channel();
        self.server.call(move |service, now, out| {
            // Who asked may be gone.
            let _ = sender.send(service.resize(target, now, out));
        });
        let done = receiver.recv_timeout(Deadline::Reply.duration());
        done.map_err(|error| Error::because("resizing the job", error))?.map_err(Error::invalid)
    }

    /// Returns the number of ranks that the job should have. A launcher watches it, and starts processes when
    /// it grows.
    pub fn target(&self) -> u32 {
        self.target.load(Ordering::Relaxed)
    }

    /// Lets all processes leave after a step that all agree on; no epoch is formed after that.
    pub fn stop(&self) {
        self.server.call(|service, _now, out| service.finish(End::Stop, out));
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Returns the coordinator of a new job, which began at `base`, without its sockets: for fuzz targets.
pub fn new_coordinator(options: Options, base: Instant) -> impl Node {
    let coordinator_state = CoordinatorState::Decided(Box::new(Roster::found(Id(7), options)));
    let tell = Box::new(|event: &Event| assert!(!event.text.contains('\n'), "{event:?}"));
    let target = Arc::new(AtomicU32::new(0));
    CoordinatorService::new(
        RoleRegistry::of_workers(coordinator_state),
        Persistence::default(),
        target,
        tell,
        base,
    )
}
