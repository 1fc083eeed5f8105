//! Views: everything about the servers of a job that its processes have to agree on, decided by a service
//! beside the coordinator.
//!
//! The coordinator knows who is there; a [`ViewService`] decides from that which server keeps what. The
//! coordinator tells it of epochs and hands it requests, saves its state together with the rosters, and sends
//! the state to everybody who has subscribed. Law: no state leaves before it is saved.

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

/// Most bytes of a request to a view service.
pub const VIEWS_REQUEST_BYTES_MAX: usize = 256 << 10;
/// Most bytes of the state of a view service.
pub const VIEWS_BYTES_MAX: usize = thinwire_link::endpoint::MESSAGE_BYTES_MAX / 2;

/// State machine beside the coordinator that decides which server keeps what. It runs on the coordinator's
/// thread, without clock or sockets, and must not block.
pub trait ViewService: Send {
    /// An epoch of workers or of servers has started. The last epoch of each role is told again after a
    /// restart of the coordinator.
    fn started(&mut self, role: Role, epoch: u32, members: &[Id]);

    /// Learns which servers are known to be dead, whether they are in the last epoch or not; called after
    /// every event. A server that is only silent may be cut off, and counts as alive.
    fn look(&mut self, _is_dead: &dyn Fn(Id) -> bool) {}

    /// The process `from` asks for something; `Id(0)` is a process that only reads.
    ///
    /// # Errors
    /// A refusal, which is told to that process alone; it must leave the state unchanged.
    fn request(&mut self, from: Id, request: &[u8]) -> Result<(), String>;

    /// Returns figures for people, which are added to those of the servers in the coordinator's status.
    fn stats(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Returns a number that grows with every change of the state.
    fn version(&self) -> u64;

    /// Returns the whole state, as it is saved and sent: at most [`VIEWS_BYTES_MAX`] bytes. Readers need the
    /// version in it, since a coordinator that was replaced may still send an old state.
    fn state(&self) -> Vec<u8>;

    /// Continues from a saved state; called before any other method.
    ///
    /// # Errors
    /// A line that says why, if the bytes are no such state.
    fn restore(&mut self, state: &[u8]) -> Result<(), String>;
}

/// Maker of view services: every coordinator begins with a new one.
pub type Views = Box<dyn FnMut() -> Box<dyn ViewService> + Send>;

/// Servers of a job, and what decides about them.
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

/// Job as a coordinator begins it: settings of its workers, and its servers if it has any.
#[derive(Debug)]
pub struct Job {
    /// Settings of the workers' roster.
    pub workers: Options,
    /// Servers beside the workers.
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
