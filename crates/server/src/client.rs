//! Client of a job's servers: the process that pushes gradients and pulls rows.
//!
//! It knows the tables and the servers from the coordinator, and speaks with all primaries at once. What
//! is refused, or lost with a server, is sent again with its number to the server that follows; the
//! coordinator may be away meanwhile. Law: a push that has returned is applied once, whatever fails.

mod caches;
mod courier;
mod desk;
mod inbox;
mod pulling;
mod reader;
mod rounding;
mod session;
mod snapshot;
mod split;
mod watch;

use std::time::Duration;

use thinwire_job::elastic::Seat;
use thinwire_rows::Hits;

use crate::configuration::Definition;
use crate::error::{Error, Kind};
use crate::reason::Request;
use crate::wire::FromClient;
use crate::write::{Part, Push};
pub use caches::Caching;
pub use pulling::Pulling;
pub use reader::Reader;
use rounding::Rounding;
use session::Session;
pub use snapshot::take_snapshot;
pub use split::Gradient;

/// Client of a worker, which pushes once per step and pulls what it needs.
///
/// The worker is in the job by its `Membership` or `Presence`, whose id the client has. Dropped, it leaves
/// whatever was begun to its fate.
#[derive(Debug)]
pub struct Client {
    session: Session,
    seat: Seat,
    /// Number of the last push.
    pushes: u64,
    /// Step of the last push.
    step: u64,
    /// Ticket of a push that was begun and is not finished.
    push: Option<u64>,
    rounding: Rounding,
}

impl Client {
    /// Defines the tables of the job, or checks that they are the job's, and waits until it has servers.
    ///
    /// # Errors
    /// If the definition cannot be or is not the job's, the coordinator has another token, or the
    /// servers are not there within `timeout`, which is also the longest time without an answer later:
    /// it exceeds the longest step of the slowest worker where workers wait for each other.
    pub fn open(seat: &Seat, definition: &Definition, timeout: Duration) -> Result<Client, Error> {
        if seat.id.0 == 0 || seat.id.is_server() {
            let message = format!("client {} is no worker, expected the id of one", seat.id);
            return Err(Error::invalid(message));
        }
        let session = Session::open(seat, Some(definition), timeout)?;
        let rounding = Rounding::new(seat.id);
        Ok(Client { session, seat: seat.clone(), pushes: 0, step: 0, push: None, rounding })
    }

    /// Returns the number of a table.
    pub fn table(&self, name: &str) -> Option<u32> {
        self.session.atlas.number(name)
    }

    /// Keeps rows of a table from now on, and gives them while they are not too old. They still contain all
    /// pushes of this client. Without a cache, and with a staleness of 0 under `sync`, each pull is as
    /// new as the job's consistency asks for; any other staleness comes on top of that.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if there is no such table.
    pub fn cache(&mut self, table: u32, caching: Caching) -> Result<(), Error> {
        self.session.atlas.size(table)?;
        let format = self.session.atlas.format(table);
        self.session.caches.add(table, format, caching);
        Ok(())
    }

    /// Returns the counts of a table's cache; none without one.
    pub fn hits(&self, table: u32) -> Option<Hits> {
        self.session.caches.hits(table)
    }

    /// Returns the number of pushes so far.
    pub fn pushes(&self) -> u64 {
        self.pushes
    }

    /// Pushes the gradients of a step, which may be none, and returns when they will survive.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if a table, row or length does not fit; nothing was sent then.
    /// [`Kind::Timeout`] if nothing is answered for too long: the push is still under way, and
    /// [`Client::finish_push`] waits on. [`Kind::Lost`] if no server has a shard any more.
    pub fn push(&mut self, gradients: &[Gradient<'_>]) -> Result<(), Error> {
        self.begin_push(gradients)?;
        self.finish_push()
    }

    /// Begins a push, after the one before is finished.
    ///
    /// # Errors
    /// As [`Client::push`].
    pub fn begin_push(&mut self, gradients: &[Gradient<'_>]) -> Result<(), Error> {
        let mut shards = self.session.atlas.parts(gradients)?;
        self.finish_push()?;
        self.pushes += 1;
        // A worker that joins or comes back continues beside the slowest of the others.
        self.step = self.step.max(self.session.step()) + 1;
        self.session.atlas.round(self.pushes, &mut shards, &mut self.rounding);
        self.session.caches.pushed(gradients);
        let ticket = self.session.ticket();
        for (shard, parts) in (0..).zip(shards) {
            self.add_push(ticket, shard, parts);
        }
        self.push = Some(ticket);
        self.session.send()
    }

    fn add_push(&mut self, ticket: u64, shard: u32, parts: Vec<Part>) {
        let (number, step) = (self.pushes, self.step);
        let push = Push { client: self.seat.id, number, step, parts };
        let key = (shard, Request::Push(number));
        self.session.add(ticket, key, &FromClient::Push { shard, push }, 0);
    }

    /// Waits until the push that was begun will survive.
    ///
    /// # Errors
    /// As [`Client::push`].
    pub fn finish_push(&mut self) -> Result<(), Error> {
        if let Some(ticket) = self.push {
            let finished = self.session.finish(ticket);
            let is_over = !matches!(&finished, Err(error) if error.kind() == Kind::Timeout);
            self.push = self.push.filter(|_| !is_over);
            finished?;
        }
        Ok(())
    }

    /// Reads rows in any order into `out`, group after group and row by row: each is the values of a table's
    /// rows. They contain all pushes of this client, and are as new as the job's consistency asks for, or kept by a
    /// cache. Values of tables that do not travel as f32 are rounded to the nearest.
    ///
    /// # Errors
    /// As [`Client::push`]; nothing of a pull is under way then.
    pub fn pull(&mut self, groups: &[(u32, &[u64])], out: &mut [f32]) -> Result<(), Error> {
        self.session.pull(groups, self.pushes, out)
    }

    /// Reads all rows of a table.
    ///
    /// # Errors
    /// As [`Client::pull`].
    pub fn pull_all(&mut self, table: u32) -> Result<Vec<f32>, Error> {
        self.session.pull_all(table, self.pushes)
    }

    /// Begins to read rows.
    ///
    /// # Errors
    /// As [`Client::pull`].
    pub fn begin_pull(&mut self, groups: &[(u32, &[u64])]) -> Result<Pulling, Error> {
        self.session.begin_pull(groups, self.pushes)
    }

    /// Waits for the rows of a pull, as [`Client::pull`] does.
    ///
    /// # Errors
    /// As [`Client::pull`].
    pub fn finish_pull(&mut self, pulling: Pulling, out: &mut [f32]) -> Result<(), Error> {
        self.session.finish_pulling(pulling, self.pushes, out)
    }

    /// Takes a snapshot of the job that contains all pushes of this client, and returns the name of its folder.
    ///
    /// # Errors
    /// As [`take_snapshot`].
    pub fn snapshot(&mut self) -> Result<String, Error> {
        self.finish_push()?;
        take_snapshot(&self.seat, self.session.timeout())
    }
}
