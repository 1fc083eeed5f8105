//! An operator of an elastic job: somebody who looks at it or resizes it.

use std::time::{Duration, Instant};

use thinwire_link as link;
use thinwire_link::service::Connection;

use super::envelope::{Reply, Request};
use crate::error::Error;
use crate::rendezvous::secret;

/// Connection of an operator to the coordinator.
#[derive(Debug)]
pub struct Operator {
    connection: Connection,
    timeout: Duration,
}

impl Operator {
    /// Connects to the coordinator at `address`, host:port; every request is answered within `timeout`.
    ///
    /// # Errors
    /// If the coordinator does not answer, or has another token.
    pub fn connect(address: &str, token: &str, timeout: Duration) -> Result<Operator, Error> {
        let secret = secret(token, address)?;
        Ok(Operator { connection: Connection::connect(address, &secret, timeout)?, timeout })
    }

    /// Returns the state of the job as JSON: `epoch`, `step`, `target`, `min`, `max`, `waiting`, `end`,
    /// `members` by rank, and `newcomers`, each with `id`, `rank`, `standing`, `step` and `figures`.
    ///
    /// # Errors
    /// If the coordinator does not answer.
    pub fn status(&mut self) -> Result<String, Error> {
        match self.ask(&Request::Status)? {
            Reply::Status(json) => Ok(json),
            other => Err(strange(&other)),
        }
    }

    /// Sets the number of ranks that are wanted.
    ///
    /// # Errors
    /// If the job's limits exclude it, or the coordinator does not answer.
    pub fn resize(&mut self, target: u32) -> Result<(), Error> {
        match self.ask(&Request::Resize(target))? {
            Reply::Resized(_) => Ok(()),
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
                Some(message) => return Ok(Reply::parse(&message)?),
                None if left.is_zero() => {
                    let context = format!("no answer within {:.0} s", self.timeout.as_secs_f64());
                    return Err(link::Error::new(link::Kind::Timeout, context).into());
                }
                None => {}
            }
        }
    }
}

fn strange(reply: &Reply) -> Error {
    link::Error::new(link::Kind::Corrupt, format!("unexpected answer {reply:?}")).into()
}
