//! An operator of an elastic job: a person or program that watches or resizes the job.

use std::time::{Duration, Instant};

use thinwire_link as link;
use thinwire_link::endpoint::Connection;

use super::envelope::{Reply, Request};
use super::etcd;
use crate::address;
use crate::error::Error;
use crate::rendezvous::{secret, without_token};

/// Connection of an operator to the coordinator.
#[derive(Debug)]
pub struct Operator {
    connection: Connection,
    timeout: Duration,
}

impl Operator {
    /// Connects to the coordinator at `address`, host:port or the store that has its address
    /// (`etcd://host:port/JOB`). Every request must be answered within `timeout`.
    ///
    /// # Errors
    /// If the coordinator does not answer, or has another token.
    pub fn connect(address: &str, token: &str, timeout: Duration) -> Result<Operator, Error> {
        let secret = secret(token, address)?;
        let address = etcd::locate(address, timeout)?;
        address::check(&address)?;
        let connection = Connection::connect(&address, &secret, timeout);
        let connection = connection.map_err(|error| without_token(error.into(), token))?;
        Ok(Operator { connection, timeout })
    }

    /// Waits until the coordinator may have sent something, at most `timeout`.
    ///
    /// # Errors
    /// If the coordinator has ended.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        Ok(self.connection.receive(timeout).map(drop)?)
    }

    /// Returns the state of the job as JSON: `epoch`, `step`, `target`, `min`, `max`, `waiting`, `end`,
    /// `servers` (null for a job without servers), `members` by rank, and `newcomers`, each with `id`,
    /// `rank`, `standing`, `step` and `figures`. A standing is `newcomer`, `running`, `halted`, `silent` (no
    /// recent heartbeat) or `lost` (not connected).
    ///
    /// # Errors
    /// If the coordinator does not answer.
    pub fn status(&mut self) -> Result<String, Error> {
        match self.ask(&Request::Status)? {
            Reply::Status(json) => Ok(json),
            other => Err(strange(&other)),
        }
    }

    /// Sets the number of ranks that the job should have.
    ///
    /// # Errors
    /// If the job's limits exclude it, the job has not begun or is over, or the coordinator does not answer
    /// or cannot save its state.
    pub fn resize(&mut self, target: u32) -> Result<(), Error> {
        match self.ask(&Request::Resize(target))? {
            Reply::Resized(_) => Ok(()),
            // Only a number beyond the bounds is refused with what was expected.
            Reply::Refused(reason) if reason.contains(" expected ") => Err(Error::invalid(reason)
                .with_hint("the bounds are those of the job's own --ranks MIN:MAX")),
            Reply::Refused(reason) => Err(Error::invalid(reason)),
            other => Err(strange(&other)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, Error> {
        let deadline = Instant::now() + self.timeout;
        self.connection.send(&request.to_bytes())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.connection.receive(left)? {
                Some(message) => match Reply::parse(&message)? {
                    // It is told to all, and says nothing that the status does not.
                    Reply::End(_) => {}
                    reply => return Ok(reply),
                },
                None if left.is_zero() => {
                    let context = format!("no answer within {:.0} s", self.timeout.as_secs_f64());
                    return Err(link::Error::new(link::Kind::Timeout, context).into());
                }
                // The time has passed since `left` was computed, as the next turn sees.
                None => {}
            }
        }
    }
}

fn strange(reply: &Reply) -> Error {
    link::Error::new(link::Kind::Corrupt, format!("unexpected answer {reply:?}")).into()
}
