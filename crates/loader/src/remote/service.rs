//! Service that answers for the rows of one part.

use std::sync::Arc;
use std::time::Instant;

use thinwire_link::service::{ClientId, MESSAGE_BYTES_MAX, Outbox, Service};
use thinwire_link::{Error, Kind};
use thinwire_rows::Source;

use super::SharedSource;

/// Version of the messages.
pub const VERSION: u32 = 1;
/// Size of a description.
pub const DESCRIPTION_BYTES: usize = 24;
/// Request for the description.
pub const DESCRIBE: u8 = 0;
/// Request for rows.
pub const READ: u8 = 1;
/// Requests that a client may have under way.
pub const WINDOW: usize = 4;
/// Size of an answer, unless a single row is larger.
const ANSWER_BYTES: usize = 256 << 10;
/// Bytes around an answer.
const AROUND: usize = 64;

/// Returns the most rows of a request.
pub fn rows_max(width: usize) -> usize {
    (ANSWER_BYTES / width.max(1)).max(1)
}

/// Service for the rows of one part.
pub struct RowService {
    source: SharedSource,
    first: u64,
    rows: u64,
    asked: Vec<u64>,
    answer: Vec<u8>,
}

impl RowService {
    /// Creates the service of the rows `first..first + rows`; those of `source` count from 0.
    ///
    /// # Errors
    /// If a row is larger than a message, 4 MiB.
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
        self.answer.clear();
        self.answer.extend(VERSION.to_le_bytes());
        self.answer.extend((self.source.width() as u32).to_le_bytes());
        self.answer.extend(self.first.to_le_bytes());
        self.answer.extend(self.rows.to_le_bytes());
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

impl Service for RowService {
    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        _now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        match message.split_first() {
            Some((&DESCRIBE, [])) => self.describe(),
            Some((&READ, numbers)) => self.read(numbers)?,
            _ => return Err(Error::new(Kind::Corrupt, "a request of no kind that there is")),
        }
        out.send(client, &self.answer);
        Ok(())
    }

    fn message_bytes_max(&self) -> usize {
        1 + 8 * rows_max(self.source.width())
    }

    fn output_bytes_max(&self) -> usize {
        let width = self.source.width();
        WINDOW * (rows_max(width) * width + AROUND)
    }

    fn gives_way(&self) -> bool {
        true
    }
}
