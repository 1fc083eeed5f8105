//! Client of a job's servers, which pushes gradients and pulls rows.
//!
//! The coordinator tells the client the tables and the primaries, and the client keeps a connection to each
//! primary. A request that is refused or lost is sent again under the same number, to the new primary if
//! there is one. The coordinator may be unreachable meanwhile. Law: a push that has returned is applied
//! exactly once, whatever fails.

mod caches;
mod connections;
mod inbox;
mod pending_requests;
mod pulling;
mod reader;
mod rounding;
mod session;
mod snapshot;
mod split;
mod watch;

use std::time::Duration;

use thinwire_job::elastic::JobAddress;
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

/// Client of a worker: pushes once per step, and pulls the rows that the worker needs.
///
/// The client uses the id of the worker's `Membership` or `Presence`. Dropping the client does not cancel
/// requests under way: a push that was begun may or may not be applied.
#[derive(Debug)]
pub struct Client {
    session: Session,
    job_address: JobAddress,
    /// Number of the last push.
    pushes: u64,
    /// Step of the last push.
    step: u64,
    /// Ticket of the push that was begun and not finished.
    push: Option<u64>,
    rounding: Rounding,
}

impl Client {
    /// Defines the tables of the job, or checks that they equal the job's, and waits until the job has
    /// servers. `timeout` bounds this wait and every later wait for an answer. Under `sync` and `bounded` it
    /// must exceed the longest step of the slowest worker.
    ///
    /// # Errors
    /// If the definition is invalid or differs from the job's, the coordinator has another token, or the
    /// servers are not ready within `timeout`.
    pub fn open(
        job_address: &JobAddress,
        definition: &Definition,
        timeout: Duration,
    ) -> Result<Client, Error> {
        // Readers have the id 0.
        if job_address.id.0 == 0 || job_address.id.is_server() {
            let message = format!("client {} is no worker, expected the id of one", job_address.id);
            return Err(Error::invalid(message));
        }
        let session = Session::open(job_address, Some(definition), timeout)?;
        let rounding = Rounding::new(job_address.id);
        Ok(Client {
            session,
            job_address: job_address.clone(),
            pushes: 0,
            step: 0,
            push: None,
            rounding,
        })
    }

    /// Returns the number of the table with this name.
    pub fn table(&self, name: &str) -> Option<u32> {
        self.session.partition_map.number(name)
    }

    /// Caches rows of a table from now on. Cached rows contain all pushes of this client. With a staleness of
    /// 0 under `sync`, pulls return the same values as without a cache; otherwise the staleness of the cache
    /// adds to what the job's consistency allows.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if there is no such table.
    pub fn cache(&mut self, table: u32, caching: Caching) -> Result<(), Error> {
        self.session.partition_map.size(table)?;
        let (format, width) = self.session.partition_map.format(table);
        self.session.caches.add(table, format.width(width), caching);
        Ok(())
    }

    /// Returns the counters of a table's cache, or `None` if the table is not cached.
    pub fn hits(&self, table: u32) -> Option<Hits> {
        self.session.caches.hits(table)
    }

    /// Returns the counters of all caches together, or `None` if no table is cached.
    pub fn all_hits(&self) -> Option<Hits> {
        self.session.caches.all_hits()
    }

    /// Returns the number of pushes so far.
    pub fn pushes(&self) -> u64 {
        self.pushes
    }

    /// Returns the number of workers that push, including this one, or `None` before the first step. A worker
    /// that only reads does not count.
    pub fn pushing(&self) -> Option<u32> {
        Some(self.session.pace().pushing).filter(|count| *count > 0)
    }

    /// Pushes the gradients of a step, possibly none, and returns once all replicas of all shards have them.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if a table, row, length or value does not fit. The step counts as one without
    /// gradients, so that the next push belongs to the same step as those of other workers. [`Kind::Timeout`] if no
    /// request is answered for the timeout: the push is still under way, and [`Client::finish_push`]
    /// continues to wait. [`Kind::Lost`] if a shard has no replica left.
    pub fn push(&mut self, gradients: &[Gradient<'_>]) -> Result<(), Error> {
        self.begin_push(gradients)?;
        self.finish_push()
    }

    /// Sends a push without waiting for it, after finishing the previous one.
    ///
    /// # Errors
    /// As [`Client::push`].
    pub fn begin_push(&mut self, gradients: &[Gradient<'_>]) -> Result<(), Error> {
        let mut shards = match self.session.partition_map.parts(gradients) {
            Ok(shards) => shards,
            Err(error) => {
                self.begin_push(&[])?;
                return Err(error);
            }
        };
        self.finish_push()?;
        self.pushes += 1;
        // A worker that joins or returns continues at the step of the slowest other worker.
        self.step = self.step.max(self.session.pace().step) + 1;
        self.session.partition_map.round(self.pushes, &mut shards, &mut self.rounding);
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
        let push = Push { client: self.job_address.id, number, step, parts };
        let key = (shard, Request::Push(number));
        self.session.add(ticket, key, &FromClient::Push { shard, push }, 0);
    }

    /// Waits until all replicas of all shards have the push that was begun.
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

    /// Reads rows into `out`, group after group and row by row. A group is a table and its row numbers, in
    /// any order. The values contain all pushes of this client, and are as recent as the job's consistency
    /// requires or the table's cache allows. Values of tables in `f16` or `int8` are rounded to the nearest.
    ///
    /// # Errors
    /// As [`Client::push`]. After an error no request of this pull is under way.
    pub fn pull(&mut self, groups: &[(u32, &[u64])], out: &mut [f32]) -> Result<(), Error> {
        self.session.pull(groups, self.pushes, out)
    }

    /// Reads all rows of a table, in the order of their numbers.
    ///
    /// # Errors
    /// As [`Client::pull`].
    pub fn pull_all(&mut self, table: u32) -> Result<Vec<f32>, Error> {
        self.session.pull_all(table, self.pushes)
    }

    /// Requests rows without waiting for them.
    ///
    /// # Errors
    /// As [`Client::pull`].
    pub fn begin_pull(&mut self, groups: &[(u32, &[u64])]) -> Result<Pulling, Error> {
        self.session.begin_pull(groups, self.pushes)
    }

    /// Waits for the rows of a pull and writes them to `out`, as [`Client::pull`] does.
    ///
    /// # Errors
    /// As [`Client::pull`].
    pub fn finish_pull(&mut self, pulling: Pulling, out: &mut [f32]) -> Result<(), Error> {
        self.session.finish_pulling(pulling, self.pushes, out)
    }

    /// Takes a snapshot of the job that contains all pushes of this client. Returns the name of its folder.
    ///
    /// # Errors
    /// As [`take_snapshot`].
    pub fn snapshot(&mut self) -> Result<String, Error> {
        self.finish_push()?;
        take_snapshot(&self.job_address, self.session.timeout())
    }
}
