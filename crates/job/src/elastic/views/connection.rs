//! Connection of a process to the view service of its job's coordinator.

use std::time::{Duration, Instant};

use thinwire_link as link;
use thinwire_link::endpoint::Connection;
use thinwire_link::{Deadline, Waker};
use thinwire_member::Id;

use super::VIEWS_REQUEST_BYTES_MAX;
use crate::elastic::envelope::{Reply, Request};
use crate::elastic::etcd;
use crate::error::Error;
use crate::rendezvous::secret;

/// Connection of a process to the view service: it sends requests and receives states. It does not reconnect:
/// after an error its owner makes a new connection, and subscribes again.
#[derive(Debug)]
pub struct ViewsConnection {
    connection: Connection,
    from: Id,
    /// Time of the last message of the coordinator, and of the last ping.
    heard: Instant,
    asked: Instant,
}

impl ViewsConnection {
    /// Connects the process `from` (`Id(0)` if it only reads) to the coordinator at `address`, host:port or
    /// the store that has its address (`etcd://host:port/JOB`).
    ///
    /// # Errors
    /// If the coordinator does not answer within `timeout`, or has another token.
    pub fn connect(
        address: &str,
        token: &str,
        from: Id,
        timeout: Duration,
    ) -> Result<ViewsConnection, Error> {
        let deadline = Instant::now() + timeout;
        let secret = secret(token, address)?;
        let address = etcd::locate(address, timeout)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let connection = Connection::connect(&address, &secret, left)?;
        let now = Instant::now();
        Ok(ViewsConnection { connection, from, heard: now, asked: now })
    }

    /// Sends a request, and subscribes; an empty request only subscribes. The answer is the state after the
    /// request, or a refusal. States that were sent earlier may arrive before it.
    ///
    /// # Errors
    /// If the request is longer than [`VIEWS_REQUEST_BYTES_MAX`], or the coordinator has ended.
    pub fn send(&mut self, request: &[u8]) -> Result<(), Error> {
        let found = request.len();
        if found > VIEWS_REQUEST_BYTES_MAX {
            return Err(Error::invalid(format!(
                "request of {found} bytes to the coordinator's views, expected at most {VIEWS_REQUEST_BYTES_MAX}"
            )));
        }
        let request = Request::Views { from: self.from, request: request.to_vec() };
        Ok(self.connection.send(&request.to_bytes())?)
    }

    /// Waits for a state, or for the text of a refusal. Returns `None` when `timeout` has passed or a
    /// waker was used. Pings a silent coordinator.
    ///
    /// # Errors
    /// If the coordinator has ended, does not answer for ten seconds, or sends a malformed message. The
    /// connection is then over.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Result<Vec<u8>, String>>, Error> {
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            let (waited, wait) = (Instant::now(), left.min(Deadline::Idle.duration()));
            if let Some(message) = self.connection.receive(wait)? {
                self.heard = Instant::now();
                return state(&message).map(Some);
            }
            self.ask_if_silent()?;
            // A wait that was cut short was ended by a waker.
            if wait == left || waited.elapsed() < wait {
                return Ok(None);
            }
        }
    }

    fn ask_if_silent(&mut self) -> Result<(), Error> {
        if self.heard.elapsed() > Deadline::Silence.duration() {
            let context = format!(
                "the coordinator has sent nothing for {} s",
                Deadline::Silence.duration().as_secs()
            );
            return Err(link::Error::new(link::Kind::Unreachable, context).into());
        }
        if self.heard.elapsed().min(self.asked.elapsed()) < Deadline::Idle.duration() {
            return Ok(());
        }
        self.asked = Instant::now();
        self.send(&[])
    }

    /// Returns a handle that ends [`ViewsConnection::receive`] from another thread.
    pub fn waker(&self) -> Waker {
        self.connection.waker()
    }
}

/// Returns the state or the refusal in a message.
pub(super) fn state(message: &[u8]) -> Result<Result<Vec<u8>, String>, Error> {
    match Reply::parse(message)? {
        Reply::Views(state) => Ok(Ok(state)),
        Reply::ViewsRefused(reason) => Ok(Err(reason)),
        other => {
            let context = format!("unexpected answer {other:?}");
            Err(link::Error::new(link::Kind::Corrupt, context).into())
        }
    }
}
