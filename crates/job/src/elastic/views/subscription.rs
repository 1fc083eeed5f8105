//! Subscription of a node to the view service of its job's coordinator. The node's endpoint dials the
//! connection, and dials again when it ends.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use thinwire_link as link;
use thinwire_link::endpoint::{ClientId, Outbox, system_addresses};
use thinwire_link::{Backoff, Deadline};
use thinwire_member::Id;

use super::VIEWS_REQUEST_BYTES_MAX;
use super::connection::state;
use crate::elastic::envelope::Request;
use crate::elastic::etcd;
use crate::elastic::job_address::JobAddress;
use crate::error::Error;

/// Subscription of one node: it sends requests and receives states. The node passes it the events of its
/// connection.
///
/// Law: after every call of `opened` the coordinator sends at least one state or refusal, and after that
/// every new state until `hung_up`.
#[derive(Debug)]
pub struct Subscription {
    coordinator: String,
    from: Id,
    client: Option<ClientId>,
    is_open: bool,
    backoff: Backoff,
}

impl Subscription {
    /// Returns the subscription of the process with this job address, before it is dialled.
    pub fn new(job_address: &JobAddress) -> Subscription {
        let (coordinator, from) = (job_address.coordinator.clone(), job_address.id);
        let (client, is_open, backoff) = (None, false, Backoff::default());
        Subscription { coordinator, from, client, is_open, backoff }
    }

    /// Dials the coordinator.
    pub fn dial(&mut self, at: Instant, out: &mut Outbox) {
        (self.client, self.is_open) = (Some(out.dial(&self.coordinator, at)), false);
    }

    /// Returns whether a connection of the endpoint is the one to the coordinator.
    pub fn has(&self, client: ClientId) -> bool {
        self.client == Some(client)
    }

    /// Returns whether the connection to the coordinator is open.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Notes that the connection is open, and sends a first request; an empty one only subscribes.
    ///
    /// # Panics
    /// As [`Subscription::send`].
    pub fn opened(&mut self, request: &[u8], out: &mut Outbox) {
        self.is_open = true;
        self.backoff.reset();
        self.send(request, out);
    }

    /// Sends a request, if the connection is open. The answer is the state after the request, or a refusal.
    /// States that were sent earlier may arrive before it.
    ///
    /// # Panics
    /// If the request is longer than [`VIEWS_REQUEST_BYTES_MAX`].
    pub fn send(&mut self, request: &[u8], out: &mut Outbox) {
        let found = request.len();
        assert!(found <= VIEWS_REQUEST_BYTES_MAX, "a request of {found} bytes to the views");
        if let Some(client) = self.client.filter(|_| self.is_open) {
            let request = Request::Views { from: self.from, request: request.to_vec() };
            out.send(client, &request.to_bytes());
        }
    }

    /// Returns the state in a message of the coordinator, or the text of a refusal.
    ///
    /// # Errors
    /// If the message is malformed. The caller must then close the connection.
    pub fn received(&self, message: &[u8]) -> Result<Result<Vec<u8>, String>, Error> {
        state(message)
    }

    /// Dials again, after a growing pause. Returns why the connection has ended, or could not be opened.
    pub fn hung_up(&mut self, why: &link::Error, now: Instant, out: &mut Outbox) -> Error {
        let pause = self.backoff.pause();
        self.dial(now + pause, out);
        why.repeat().of_connection(format_args!("the coordinator at {}", self.coordinator)).into()
    }

    /// Closes the connection, and does not dial again.
    pub fn close(&mut self, out: &mut Outbox) {
        self.is_open = false;
        self.client.take().into_iter().for_each(|client| out.close(client));
    }
}

/// Returns the addresses of a job's coordinator, given as host:port or as the store that has its address
/// (`etcd://host:port/JOB`); for [`thinwire_link::endpoint::Node::resolve`]. May block for two seconds.
///
/// # Errors
/// If the name is unknown, or the store has no coordinator's address.
pub fn coordinator_addresses(coordinator: &str) -> io::Result<Vec<SocketAddr>> {
    system_addresses(
        &etcd::locate(coordinator, Deadline::Dial.duration()).map_err(io::Error::other)?,
    )
}

#[cfg(test)]
mod tests {
    use thinwire_link::endpoint::Action;

    use super::*;
    use crate::elastic::envelope::Reply;

    fn dialled(out: &mut Outbox) -> (ClientId, Instant) {
        match &out.take()[..] {
            [Action::Dial { id, at, .. }] => (*id, *at),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_dials_again_and_subscribes_again() {
        let job_address = JobAddress::new("127.0.0.1:1".to_owned(), String::new()).unwrap();
        let mut subscription = Subscription::new(&job_address);
        let (now, mut out) = (Instant::now(), Outbox::new());
        subscription.dial(now, &mut out);
        let (first, _) = dialled(&mut out);
        subscription.send(b"early", &mut out);
        assert!(out.take().is_empty() && !subscription.is_open());
        subscription.opened(b"", &mut out);
        let asked = Request::Views { from: job_address.id, request: Vec::new() }.to_bytes();
        assert_eq!(out.take(), [Action::Send { to: first, message: asked }]);
        let answer = subscription.received(&Reply::Views(vec![7]).to_bytes());
        assert_eq!(answer.unwrap(), Ok(vec![7]));
        let error = link::Error::new(link::Kind::Io, "closed the connection");
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let text = subscription.hung_up(&error, now, &mut out).to_string();
            assert_eq!(text, "the coordinator at 127.0.0.1:1 closed the connection");
            pauses.push(dialled(&mut out).1 - now);
        }
        assert!(!subscription.has(first) && pauses.is_sorted() && pauses[2] > pauses[0]);
        subscription.close(&mut out);
        assert!(matches!(out.take()[..], [Action::Close(_)]));
        subscription.close(&mut out);
        assert!(out.take().is_empty());
    }
}
