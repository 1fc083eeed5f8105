//! Views: everything about the servers of a job on which its processes have to agree. A service in the
//! coordinator's process decides them.
//!
//! The coordinator knows which processes are in the job. From this, a [`ViewService`] decides which
//! server has which data. The coordinator reports epochs to it, passes requests on to it, saves its
//! state together with the rosters, and sends the state to all subscribers. Law: no state is sent before
//! it is saved.

mod connection;
mod publication;
mod subscription;

use std::fmt;

use serde_json::{Map, Value};
use thinwire_member::{CoordinatorMode, Id, Options};

use super::role::Role;
use crate::error::Error;
pub use connection::ViewsConnection;
pub(super) use publication::Publication;
pub use subscription::{Subscription, coordinator_addresses};

/// Largest number of bytes of a request to a view service.
pub const VIEWS_REQUEST_BYTES_MAX: usize = 256 << 10;
/// Largest number of bytes of the state of a view service.
pub const VIEWS_BYTES_MAX: usize = thinwire_link::endpoint::MESSAGE_BYTES_MAX / 2;

/// State machine that decides which server has which data. It runs on the coordinator's thread, without clock
/// or sockets, and must not block.
pub trait ViewService: Send {
    /// Notes that an epoch of workers or of servers has started. After a restart of the coordinator, the last
    /// epoch of each role is reported again.
    fn started(&mut self, role: Role, epoch: u32, members: &[Id]);

    /// Receives a function that returns whether a server is known to be dead; called after every event.
    /// The server need not be in the last epoch. A server that is only silent may merely be cut off, and
    /// counts as alive.
    fn look(&mut self, _is_dead: &dyn Fn(Id) -> bool) {}

    /// Handles a request of the process `from`; `Id(0)` is a process that only reads.
    ///
    /// # Errors
    /// A refusal, which is sent to that process only. It must leave the state unchanged.
    fn request(&mut self, from: Id, request: &[u8]) -> Result<(), String>;

    /// Returns figures for users, which are added to the servers' part of the coordinator's status.
    fn stats(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Returns a number that grows with every change of the state.
    fn version(&self) -> u64;

    /// Returns the whole state, as it is saved and sent: at most [`VIEWS_BYTES_MAX`] bytes. It must contain
    /// the version, since a coordinator that was replaced may still send an old state.
    fn state(&self) -> Vec<u8>;

    /// Continues from a saved state; called before any other method.
    ///
    /// # Errors
    /// If the bytes are not such a state. The error is a line that says why.
    fn restore(&mut self, state: &[u8]) -> Result<(), String>;
}

/// Function that makes a view service: every coordinator begins with a new one.
pub type Views = Box<dyn FnMut() -> Box<dyn ViewService> + Send>;

/// Settings of a job's servers, and the service that decides their views.
pub struct Servers {
    /// Settings of the servers' roster, whose mode must be [`CoordinatorMode::Saved`].
    pub options: Options,
    /// Maker of the view service.
    pub views: Views,
}

impl Servers {
    /// Returns servers whose roster has these settings.
    pub fn new<V: ViewService + 'static>(
        options: Options,
        mut views: impl FnMut() -> V + Send + 'static,
    ) -> Servers {
        Servers { options, views: Box::new(move || Box::new(views())) }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A job that a coordinator is to begin: the settings of its workers, and its servers if it has any.
#[derive(Debug)]
pub struct Job {
    /// Settings of the workers' roster.
    pub workers: Options,
    /// Servers of the job, if it has any.
    pub servers: Option<Servers>,
}

impl Job {
    /// Checks the mode of the job's coordinator.
    ///
    /// # Errors
    /// If the job has servers and its coordinator is not saved.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_saved = |options: &Options| options.mode == CoordinatorMode::Saved;
        let is_lasting = |servers: &Servers| is_saved(&self.workers) && is_saved(&servers.options);
        // A coordinator that forgot which server keeps what would let others overwrite it.
        if !self.servers.as_ref().is_none_or(is_lasting) {
            return Err(Error::invalid(
                "a job with servers needs a coordinator that saves its state, expected CoordinatorMode::Saved",
            ));
        }
        Ok(())
    }
}

impl From<Options> for Job {
    /// Returns a job without servers.
    fn from(workers: Options) -> Job {
        Job { workers, servers: None }
    }
}
