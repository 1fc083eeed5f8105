//! Clients that only read, such as those that serve a model.

use std::time::Duration;

use thinwire_job::elastic::Seat;
use thinwire_member::Id;

use crate::client::session::Session;
use crate::error::Error;

/// Client that only reads: it is no worker, waits for nobody, and nobody waits for it. Answers are
/// rows as they are when they are read.
#[derive(Debug)]
pub struct Reader {
    session: Session,
}

impl Reader {
    /// Waits until the job has tables and servers. `coordinator` is its address as host:port, or the store
    /// that knows it: `etcd://host:port/JOB`.
    ///
    /// # Errors
    /// If that is not so within `timeout`, which is also the longest time without an answer later; or if the
    /// coordinator has another token.
    pub fn open(coordinator: &str, token: &str, timeout: Duration) -> Result<Reader, Error> {
        let (coordinator, token) = (coordinator.to_owned(), token.to_owned());
        let seat = Seat { coordinator, token, id: Id(0) };
        Ok(Reader { session: Session::open(&seat, None, timeout)? })
    }

    /// Returns the number of a table.
    pub fn table(&self, name: &str) -> Option<u32> {
        self.session.atlas.number(name)
    }

    /// Reads rows in any order into `out`, group after group and row by row.
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
