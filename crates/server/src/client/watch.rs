//! State of the job's shards, as the coordinator publishes it.
//!
//! While the coordinator is not reachable, the client continues with the last state.

use std::sync::Arc;
use std::time::Instant;

use thinwire_job::elastic::{JobAddress, Subscription};
use thinwire_link as link;
use thinwire_link::endpoint::{ClientId, Outbox};

use crate::client::inbox::{Event, Inbox};
use crate::configuration::JobState;
use crate::error::Error;

/// Subscription of a client to the job's state; part of the node that has the client's connections.
#[derive(Debug)]
pub struct Watch {
    subscription: Subscription,
    /// First request on each connection; an empty request only subscribes.
    request: Vec<u8>,
    inbox: Arc<Inbox>,
    version: Option<u64>,
}

impl Watch {
    /// Returns the watch of a client that sends `request` on every new connection.
    pub fn new(job_address: &JobAddress, request: Vec<u8>, inbox: &Arc<Inbox>) -> Watch {
        let (subscription, inbox) = (Subscription::new(job_address), Arc::clone(inbox));
        Watch { subscription, request, inbox, version: None }
    }

    /// Dials the coordinator.
    pub fn start(&mut self, now: Instant, out: &mut Outbox) {
        self.subscription.dial(now, out);
    }

    /// Returns whether a connection is the one to the coordinator.
    pub fn has(&self, id: ClientId) -> bool {
        self.subscription.has(id)
    }

    /// Notes that the connection is open.
    pub fn opened(&mut self, out: &mut Outbox) {
        self.subscription.opened(&self.request, out);
    }

    /// Passes on a message of the coordinator.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn received(&mut self, message: &[u8], out: &mut Outbox) -> Result<(), Error> {
        match self.subscription.received(message)? {
            Ok(bytes) => self.state(&bytes, out)?,
            Err(text) => _ = self.inbox.put(Event::Refused(text)),
        }
        Ok(())
    }

    /// Tells the client that the coordinator is not reachable, and dials again.
    pub fn hung_up(&mut self, why: &link::Error, now: Instant, out: &mut Outbox) {
        let error = self.subscription.hung_up(why, now, out);
        self.inbox.put(Event::Away(error.into()));
    }

    /// Passes on a state that is newer than the last one.
    fn state(&mut self, bytes: &[u8], out: &mut Outbox) -> Result<(), Error> {
        let state = JobState::parse(bytes)?;
        if state.definition.is_none() && !self.request.is_empty() {
            // The job's definition was dropped. If it was this one, the answer says why.
            self.subscription.send(&self.request, out);
        }
        if self.version.is_none_or(|version| version < state.version) {
            self.version = Some(state.version);
            self.inbox.put(Event::State(Box::new(state)));
        }
        Ok(())
    }
}
