//! Trained rows of all vertices on servers, which update them from the gradients of all ranks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thinwire_job::elastic::JobAddress;
use thinwire_server::{Client, Gradient};

use super::table::{Initial, NAME};
use crate::error::Error;
use crate::session::{ServerSettings, Tabled};

/// Number of the only table, that of the rows.
const TABLE: u32 = 0;

/// Client of the table of rows, for one rank.
#[derive(Debug)]
pub struct ServedRows {
    client: Mutex<Client>,
    /// Bytes that a row's gradient takes on the network, with its number.
    row_bytes: u64,
}

impl ServedRows {
    /// Defines the table of rows of `columns` numbers, and waits for the servers.
    ///
    /// # Errors
    /// If the job has another table, or the servers are not there in time.
    pub fn open(
        address: &JobAddress,
        servers: &ServerSettings,
        [vertices, columns]: [u32; 2],
        seed: u64,
        timeout: Duration,
    ) -> Result<ServedRows, Error> {
        let (rows, width) = (vertices as usize, columns as usize);
        let Initial { limit, stream } = Initial::of(width);
        let table = Tabled {
            name: NAME.to_owned(),
            rows,
            width,
            length: rows * width,
            is_matrix: true,
            initial: format!("uniform:{limit}"),
            stream,
        };
        let client = Client::open(address, &servers.definition(&[table], seed), timeout)?;
        let row_bytes = size_of::<u64>() + servers.values.width(width);
        Ok(ServedRows { client: Mutex::new(client), row_bytes: row_bytes as u64 })
    }

    /// Reads rows into `out`, one after the other. They contain all gradients that this rank has pushed.
    ///
    /// # Errors
    /// If rows are lost or the servers do not answer.
    pub fn pull(&self, vertices: &[u32], out: &mut [f32]) -> Result<(), Error> {
        Ok(self.client().pull(&[(TABLE, &numbers(vertices))], out)?)
    }

    /// Sends the gradients of rows in a step; each row occurs once. Every rank calls this once per step,
    /// without rows if it has none. Returns the size of the gradients as they are sent, in bytes.
    ///
    /// # Errors
    /// As [`ServedRows::pull`].
    pub fn push(&self, vertices: &[u32], values: &[f32]) -> Result<u64, Error> {
        let rows = numbers(vertices);
        self.client().push(&[Gradient { table: TABLE, rows: &rows, values }])?;
        Ok(rows.len() as u64 * self.row_bytes)
    }

    /// Reads all rows, in the order of vertices.
    ///
    /// # Errors
    /// As [`ServedRows::pull`].
    pub fn all(&self) -> Result<Vec<f32>, Error> {
        Ok(self.client().pull_all(TABLE)?)
    }

    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn numbers(vertices: &[u32]) -> Vec<u64> {
    vertices.iter().map(|vertex| u64::from(*vertex)).collect()
}
