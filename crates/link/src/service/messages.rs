//! Messages as records.
//!
//! A message is cut into records of [`RECORD_PLAIN_BYTES_MAX`] bytes of plaintext; the first record
//! that is shorter, if need be an empty one, ends it. A message that fits into one record is that
//! record. Law: messages arrive whole, in order and once, and no more than the limit of bytes is
//! held of one that has not ended.

use crate::Error;
use crate::secure::{RECORD_PLAIN_BYTES_MAX, Session};

/// Messages in both directions of one connection.
#[derive(Debug)]
pub struct Messages {
    session: Session,
    /// The beginning of a message whose last record has not come.
    partial: Vec<u8>,
}

impl Messages {
    /// Messages under the keys of a completed handshake.
    pub fn new(session: Session) -> Messages {
        Messages { session, partial: Vec::new() }
    }

    /// Appends `message` to `output` as records.
    pub fn seal(&mut self, message: &[u8], output: &mut Vec<u8>) {
        let records = message.chunks_exact(RECORD_PLAIN_BYTES_MAX);
        let last = records.remainder();
        records.for_each(|record| self.session.seal(record, output));
        self.session.seal(last, output);
    }

    /// Takes one whole message off the front of `input`, if there is one.
    ///
    /// # Errors
    /// If a record does not authenticate, or the message is longer than `limit`.
    pub fn receive(&mut self, input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, Error> {
        loop {
            // One record of the message at a time: what is left of the limit bounds the next one.
            let room = limit.saturating_sub(self.partial.len());
            let Some(record) = self.session.receive(input, room)? else { return Ok(None) };
            let ends = record.len() < RECORD_PLAIN_BYTES_MAX;
            match self.partial.is_empty() {
                true => self.partial = record,
                false => self.partial.extend_from_slice(&record),
            }
            if ends {
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
        }
    }
}
