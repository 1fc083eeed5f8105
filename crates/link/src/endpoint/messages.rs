//! Messages as records.
//!
//! A message is cut into records of [`RECORD_PLAIN_BYTES_MAX`] bytes of plaintext. The first shorter
//! record ends the message; if need be, it is an empty one. A message that fits into one record is that
//! record. Law: messages arrive whole, in order and once, and of an incomplete message no more bytes
//! than the limit are held.

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
    /// Returns the messages of a new connection, under the keys of its completed handshake.
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

    /// Removes one whole message from the front of `input` and returns it, if there is one.
    ///
    /// # Errors
    /// If a record does not authenticate, or the message is longer than `limit`.
    pub fn receive(&mut self, input: &mut Vec<u8>, limit: usize) -> Result<Option<Vec<u8>>, Error> {
        loop {
            // One record of the message at a time: what is left of the limit bounds the next one.
            let room = limit.saturating_sub(self.partial.len());
            let Messages { session, partial } = self;
            let Some(length) = session.receive_onto(input, room, partial)? else { return Ok(None) };
            let ends = length < RECORD_PLAIN_BYTES_MAX;
            if ends {
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::secure::tests::pair;

    fn both() -> [Messages; 2] {
        let (a, b) = pair("t", "t");
        [a, b].map(|end| Messages::new(end.unwrap().unwrap().0))
    }

    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order() {
        let (record, limit) = (RECORD_PLAIN_BYTES_MAX, 3 * RECORD_PLAIN_BYTES_MAX);
        let [mut from, mut to] = both();
        let (mut wire, mut input) = (Vec::new(), Vec::new());
        let lengths = [0, 1, record - 1, record, record + 1, 2 * record, limit];
        lengths.iter().for_each(|length| from.seal(&vec![*length as u8; *length], &mut wire));
        let mut arrived = Vec::new();
        for piece in wire.chunks(40_000) {
            input.extend_from_slice(piece);
            while let Some(message) = to.receive(&mut input, limit).unwrap() {
                assert!(message.iter().all(|byte| *byte == message.len() as u8));
                arrived.push(message.len());
            }
        }
        assert_eq!(arrived, lengths);
    }

    #[test]
    fn one_byte_more_than_the_limit_is_refused_before_it_is_held() {
        for limit in [5, RECORD_PLAIN_BYTES_MAX, RECORD_PLAIN_BYTES_MAX + 5] {
            let [mut from, mut to] = both();
            let mut wire = Vec::new();
            from.seal(&vec![1; limit + 1], &mut wire);
            assert_eq!(to.receive(&mut wire, limit).unwrap_err().kind, Kind::Limit);
            assert!(to.partial.len() <= limit);
        }
    }
}
