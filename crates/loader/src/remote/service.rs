//! Node that returns the rows of one part.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use thinwire_link::endpoint::{ClientId, MESSAGE_BYTES_MAX, Node, Outbox};
use thinwire_link::{Error, Kind};
use thinwire_rows::Source;
use thinwire_wire::{decode, encode, raw};

/// Number of requests that a client may have under way.
pub const WINDOW: usize = 4;
/// Size of an answer in bytes, unless a single row is larger.
const ANSWER_BYTES: usize = 256 << 10;
/// Bytes of a request or an answer in addition to its rows.
const AROUND: usize = 64;

/// Source of rows that threads share.
pub type SharedSource = Arc<dyn Source + Send>;

/// Request about a part.
#[derive(Serialize, Deserialize)]
pub enum Request<'a> {
    /// Description of the part.
    Describe,
    /// Rows, by their numbers in the part: eight little-endian bytes each.
    Rows(#[serde(borrow, with = "raw")] &'a [u8]),
}

/// Description of a process's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Bytes per row.
    pub width: usize,
    /// First row.
    pub first: u64,
    /// Number of rows.
    pub rows: u64,
}

/// Returns the largest number of rows in a request.
pub fn rows_max(width: usize) -> usize {
    (ANSWER_BYTES / width.max(1)).max(1)
}

/// Node for the rows of one part.
pub struct RowService {
    source: SharedSource,
    first: u64,
    rows: u64,
    asked: Vec<u64>,
    answer: Vec<u8>,
}

impl RowService {
    /// Creates the service of the rows `first..first + rows`; the rows of `source` are numbered from 0.
    ///
    /// # Errors
    /// If a row is larger than a message, which has 4 MiB.
    pub fn new(
        source: impl Source + Send + 'static,
        first: u64,
        rows: u64,
    ) -> Result<RowService, thinwire_rows::Error> {
        let width = source.width();
        if width > MESSAGE_BYTES_MAX - AROUND {
            let context = format!("rows of {width} bytes");
            let most = format!("expected at most {}", MESSAGE_BYTES_MAX - AROUND);
            return Err(thinwire_rows::Error::of_source(context, most));
        }
        Ok(RowService {
            source: Arc::new(source),
            first,
            rows,
            asked: Vec::new(),
            answer: Vec::new(),
        })
    }

    fn describe(&mut self) {
        let (width, first, rows) = (self.source.width(), self.first, self.rows);
        self.answer = encode(&Description { width, first, rows });
    }

    fn read(&mut self, numbers: &[u8]) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::new(Kind::Corrupt, text));
        let (numbers, rest) = numbers.as_chunks::<8>();
        let most = rows_max(self.source.width());
        if !rest.is_empty() || numbers.is_empty() || numbers.len() > most {
            let (found, rest) = (numbers.len(), rest.len());
            return refuse(format!("{found} rows and {rest} bytes, expected 1 to {most} rows"));
        }
        self.asked.clear();
        self.asked.extend(numbers.iter().map(|number| u64::from_le_bytes(*number)));
        if let Some(row) = self.asked.iter().find(|row| **row >= self.rows) {
            return refuse(format!("row {row} of a part, expected rows of 0..{}", self.rows));
        }
        self.answer.resize(self.asked.len() * self.source.width(), 0);
        let read = self.source.read(&self.asked, &mut self.answer);
        read.map_err(|error| Error::new(Kind::Io, error.to_string()))
    }
}

impl Node for RowService {
    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        _now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let strange = |why| Error::new(Kind::Corrupt, format!("a request for rows: {why}"));
        match decode(message).map_err(strange)? {
            Request::Describe => self.describe(),
            Request::Rows(numbers) => self.read(numbers)?,
        }
        out.send(client, &self.answer);
        Ok(())
    }

    fn message_bytes_max(&self) -> usize {
        AROUND + 8 * rows_max(self.source.width())
    }

    fn output_bytes_max(&self) -> usize {
        let width = self.source.width();
        WINDOW * (rows_max(width) * width + AROUND)
    }

    fn gives_way(&self) -> bool {
        true
    }
}
