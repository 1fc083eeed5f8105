//! Server of a job: its listening port, its membership in epochs, and its connections to coordinator and
//! peers.

mod coordinator_client;
mod node;
mod snapshot_participant;
mod snapshot_writer;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use thinwire_checkpoint::Location;
use thinwire_job::elastic::{CoordinatorMode, JobAddress, Options, Presence};
use thinwire_job::{Settings, secret, serve_behind};
use thinwire_link::endpoint::Endpoint;
use thinwire_member::Id;

use crate::error::{Error, Kind};
use crate::reports::Reports;
use crate::service::{Limits, ServerService, Stats};
use crate::snapshot::Origin;
use crate::table::MemoryLimit;
use coordinator_client::{CoordinatorClient, Parts, Shared};
use node::ServerNode;
use snapshot_participant::SnapshotParticipant;
use snapshot_writer::SnapshotWriter;

/// Limits and files of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Limits of memory and of clients' rates.
    pub limits: Limits,
    /// Location of snapshots, shared by all servers. If no server has a location, the job's snapshots
    /// fail. Either all servers must have one or none: a server that differs from the others is refused.
    pub snapshots: Option<Location>,
    /// Files with which the job begins, opened by [`Origin::open`].
    pub restore: Option<Location>,
}

/// Server of a job. It serves the shards that the coordinator assigns to it until it is dropped. If it
/// is dropped, it looks to other processes as if its process had been killed.
pub struct Server {
    address: String,
    service: Endpoint<ServerNode>,
    presence: Arc<Presence>,
    reports: Arc<Reports>,
    shared: Arc<Shared>,
}

impl Server {
    /// Joins a job as a server and listens at `listen`, the host:port at which other processes reach it. Port
    /// 0 stands for the shared port of `settings`, if it has one, and otherwise for any free port. The id of
    /// the job address must be a server's.
    ///
    /// # Errors
    /// If the address is unknown or taken, the token is missing or too short for other machines to connect,
    /// or the coordinator does not answer within the timeout of `settings`, refuses this server, or runs a
    /// job without servers.
    pub fn start(
        job_address: &JobAddress,
        listen: &str,
        settings: &Settings,
    ) -> Result<Server, Error> {
        Server::with_options(job_address, listen, settings, ServerOptions::default())
    }

    /// Joins a job as [`Server::start`] does, with limits and folders of files.
    ///
    /// # Errors
    /// As [`Server::start`]; also if there is nothing to restore, and [`Kind::Disk`] if no file can be
    /// created in the folder of spilled rows.
    pub fn with_options(
        job_address: &JobAddress,
        listen: &str,
        settings: &Settings,
        options: ServerOptions,
    ) -> Result<Server, Error> {
        let ServerOptions { limits, snapshots, restore } = options;
        limits.memory.as_ref().map_or(Ok(()), MemoryLimit::check)?;
        if !job_address.id.is_server() {
            let id = job_address.id;
            return Err(Error::new(
                Kind::Invalid,
                format!("{id} is the id of a worker, expected a server's"),
            ));
        }
        let origin = restore.as_ref().map(Origin::open).transpose()?.map(Arc::new);
        // `listen` may be on this machine only, and the coordinator beyond it, where a short token is refused.
        secret(&job_address.token, &job_address.coordinator)?;
        let reports = Arc::new(Reports::default());
        let service = ServerService::new(job_address.id, Arc::clone(&reports), Instant::now());
        let memory = limits.memory.as_ref().map(|limit| limit.bytes_max).or(limits.free_bytes);
        let service = service.within(limits);
        let node = ServerNode::new(service);
        let (service, address) = serve_behind(listen, settings.port, &job_address.token, node)?;
        reports.on_report(service.waker());
        // A member uses only the times; mode and numbers are the coordinator's.
        let roster = Options::new(CoordinatorMode::Saved, 1, u32::MAX);
        let presence = Arc::new(Presence::join(job_address, settings, roster, facts(&snapshots))?);
        let shared = Arc::new(Shared::default());
        start_writer(snapshots.as_ref(), &reports)?;
        let participant = SnapshotParticipant::new(
            job_address.id,
            snapshots,
            Arc::clone(&reports),
            Instant::now(),
        );
        let parts = Parts {
            job_address: job_address.clone(),
            address: address.clone(),
            presence: Arc::clone(&presence),
            reports: Arc::clone(&reports),
            shared: Arc::clone(&shared),
            participant,
            origin,
            memory,
        };
        let coordinator = CoordinatorClient::new(parts, Instant::now());
        service.call(move |node, now, out| node.join(coordinator, now, out));
        Ok(Server { address, service, presence, reports, shared })
    }

    /// Returns the id of the server.
    pub fn id(&self) -> Id {
        self.presence.id()
    }

    /// Returns the address at which other processes reach the server, as host:port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns stats for monitoring, at most one second old.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns the number of the last epoch that this server was in; 0 before the first.
    pub fn epoch(&self) -> u32 {
        self.presence.epoch().map_or(0, |epoch| epoch.number)
    }

    /// Returns the reason why the coordinator refuses this server, if it does. A refused server answers no
    /// clients.
    pub fn refusal(&self) -> Option<String> {
        self.presence.refusal().or_else(|| self.shared.refusal())
    }

    /// Returns the reason why this server lost its rows, if it did. After that, it answers no client,
    /// and leaves the job.
    pub fn failure(&self) -> Option<String> {
        self.reports.failure()
    }

    /// Returns, once, the error that excludes this server from the job: it cannot load the rows with which
    /// the job begins.
    pub fn exclusion(&self) -> Option<Error> {
        self.shared.exclusion()
    }

    /// Returns the next line for the user about the end of a snapshot.
    pub fn notice(&self) -> Option<String> {
        self.shared.notice()
    }

    /// Returns whether the job has ended or this server has left it.
    pub fn is_over(&self) -> bool {
        self.presence.is_over()
    }

    /// Leaves the job, and returns once the others continue without this server.
    pub fn leave(&self) {
        self.presence.leave();
    }
}

/// Returns the entries of a server's job spec: whether it has a place for snapshots, since a snapshot needs
/// the shards of all servers.
fn facts(snapshots: &Option<Location>) -> Vec<(String, String)> {
    let folder = if snapshots.is_some() { "a folder" } else { "none" };
    vec![("--snapshot-dir".to_owned(), folder.to_owned())]
}

/// Starts the thread that writes snapshots; it ends with `reports`. It is never joined, since a disk may
/// hang.
fn start_writer(place: Option<&Location>, reports: &Arc<Reports>) -> Result<(), Error> {
    let Some(place) = place else { return Ok(()) };
    let store = place.store()?;
    let (sender, tasks) = channel();
    reports.on_task(sender);
    let writer = SnapshotWriter::new(store, Arc::clone(reports));
    let thread = thread::Builder::new().name("thinwire snapshots".to_owned());
    thread.spawn(move || writer.run(&tasks)).map(drop).map_err(no_thread)
}

fn no_thread(error: std::io::Error) -> Error {
    Error::new(Kind::Invalid, format!("starting a thread: {error}"))
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, address, port) = (self.id(), &self.address, self.service.address().port());
        let mut shown = f.debug_struct("Server");
        shown.field("id", &id).field("address", address).field("port", &port);
        shown.finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.wait_for_explanation(&self.reports);
        if self.reports.failure().is_some() {
            // The others continue without this server, as if it had died.
            self.presence.leave();
        }
        self.reports.end();
    }
}
