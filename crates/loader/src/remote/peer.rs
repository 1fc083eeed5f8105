//! Connection to the process that has a part.

use std::time::Duration;

use thinwire_link::Token;
use thinwire_link::endpoint::Connection;
use thinwire_rows::Error;
use thinwire_wire::{decode, encode};

use super::service::{Description, Request, SharedSource, WINDOW, rows_max};

/// Process that has a part, and a copy of the part if there is one.
pub struct Peer {
    /// Part and address, for messages.
    name: String,
    /// `None` after the connection was lost.
    connection: Option<Connection>,
    copy: Option<SharedSource>,
    width: usize,
    timeout: Duration,
}

impl Peer {
    /// Connects to the process of a part, and asks for the part's description.
    pub fn connect(
        part: usize,
        address: &str,
        copy: Option<SharedSource>,
        token: &Token,
        timeout: Duration,
    ) -> Result<(Peer, Description), Error> {
        let name = format!("rows of part {part} at {address}");
        let lost = |error: thinwire_link::Error| failure(&name, error);
        let mut connection =
            Connection::connect_to("rows", address, token, timeout).map_err(lost)?;
        connection.send(&encode(&Request::Describe)).map_err(lost)?;
        let answer = connection.receive(timeout).map_err(lost)?;
        let answer = answer.ok_or_else(|| failure(&name, silence(timeout)))?;
        let about = description(&answer).map_err(|why| failure(&name, why))?;
        let connection = Some(connection);
        Ok((Peer { name, connection, copy, width: about.width, timeout }, about))
    }

    /// Asks for the first of these rows, as many as may be under way.
    pub fn ask(&mut self, rows: &[u64]) {
        for request in rows.chunks(rows_max(self.width)).take(WINDOW) {
            // What was not sent is missed when its answer is awaited.
            if self.send(request).is_err() {
                self.connection = None;
            }
        }
    }

    /// Reads rows for which [`Peer::ask`] was called.
    pub fn read(&mut self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        let fetched = self.fetch(rows, out);
        let Err(error) = fetched else { return Ok(()) };
        self.connection = None;
        self.copy.as_ref().map_or(Err(error), |copy| copy.read(rows, out))
    }

    fn fetch(&mut self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        let each = rows_max(self.width);
        let mut later = rows.chunks(each).skip(WINDOW);
        for out in out.chunks_mut(each * self.width) {
            let answer = self.receive()?;
            if answer.len() != out.len() {
                let (found, expected) = (answer.len(), out.len());
                return Err(self.failure(format!("answer of {found} bytes, expected {expected}")));
            }
            out.copy_from_slice(&answer);
            later.next().map_or(Ok(()), |request| self.send(request))?;
        }
        Ok(())
    }

    fn send(&mut self, rows: &[u64]) -> Result<(), Error> {
        let numbers: Vec<u8> = rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        let Some(connection) = &mut self.connection else { return Err(self.failure(GONE)) };
        let sent = connection.send(&encode(&Request::Rows(&numbers)));
        sent.map_err(|error| self.failure(error))
    }

    fn receive(&mut self) -> Result<Vec<u8>, Error> {
        let Some(connection) = &mut self.connection else { return Err(self.failure(GONE)) };
        let answer = connection.receive(self.timeout).map_err(|error| self.failure(error))?;
        answer.ok_or_else(|| self.failure(silence(self.timeout)))
    }

    fn failure(&self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        failure(&self.name, why)
    }
}

/// Reason of every failure after the first one.
const GONE: &str = "the process was lost before";

fn silence(timeout: Duration) -> String {
    format!("no answer within {} s", timeout.as_secs_f64())
}

fn failure(name: &str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::of_source(name.to_owned(), why)
}

/// Reads a description.
fn description(bytes: &[u8]) -> Result<Description, String> {
    let about = decode(bytes).map_err(|why| format!("description of a part: {why}"))?;
    let Description { width, first, rows } = about;
    if !(1..=u32::MAX as usize).contains(&width) || first.checked_add(rows).is_none() {
        return Err(format!("rows {first} and {rows} more of {width} bytes each"));
    }
    Ok(about)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_description_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            if let Ok(about) = description(&bytes) {
                prop_assert!(about.width > 0 && about.first.checked_add(about.rows).is_some());
            }
        }
    }
}
