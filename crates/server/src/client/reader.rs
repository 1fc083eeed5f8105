//! Clients that only read, for example to serve a model.

use std::time::Duration;

use thinwire_job::elastic::JobAddress;
use thinwire_member::Id;

use crate::client::session::Session;
use crate::error::Error;

/// Client that only pulls. It does not count as a worker: it never waits for workers, and they never wait for
/// it. Answers have the current values of the rows.
#[derive(Debug)]
pub struct Reader {
    session: Session,
}

impl Reader {
    /// Waits until the job has tables and servers. `coordinator` is the coordinator's host:port, or the store
    /// that has its address: `etcd://host:port/JOB`.
    ///
    /// # Errors
    /// If the job has no tables or servers within `timeout`, which also bounds every later wait for an
    /// answer, or if the coordinator has another token.
    pub fn open(coordinator: &str, token: &str, timeout: Duration) -> Result<Reader, Error> {
        let (coordinator, token) = (coordinator.to_owned(), token.to_owned());
        let job_address = JobAddress { coordinator, token, id: Id(0) };
        Ok(Reader { session: Session::open(&job_address, None, timeout)? })
    }

    /// Returns the number of the table with this name.
    pub fn table(&self, name: &str) -> Option<u32> {
        self.session.partition_map.number(name)
    }

    /// Reads rows into `out`, group after group and row by row. A group is a table and its row numbers, in
    /// any order.
    ///
    /// # Errors
    /// As [`super::Client::pull`].
    pub fn pull(&mut self, groups: &[(u32, &[u64])], out: &mut [f32]) -> Result<(), Error> {
        self.session.pull(groups, 0, out)
    }

    /// Reads all rows of a table.
    ///
    /// # Errors
    /// As [`super::Client::pull`].
    pub fn pull_all(&mut self, table: u32) -> Result<Vec<f32>, Error> {
        self.session.pull_all(table, 0)
    }
}
