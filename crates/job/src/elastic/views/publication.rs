//! Publication of views: which processes get them, and which states are saved.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use thinwire_link::endpoint::{ClientId, Outbox};
use thinwire_member::{Epoch, Id};

use super::{VIEWS_BYTES_MAX, ViewService};
use crate::elastic::envelope::Reply;
use crate::elastic::role::Role;

/// A view service, and the subscribers that receive its states.
///
/// Law: a subscriber receives every state that is saved while it is subscribed, in order.
pub struct Publication {
    service: Box<dyn ViewService>,
    subscribers: BTreeSet<ClientId>,
    /// Number of the last epoch that was reported to the service, by role.
    told: BTreeMap<Role, u32>,
    /// Version of the last state that was saved.
    saved: u64,
    /// Version of the last state that was sent to all subscribers.
    published: u64,
}

impl Publication {
    /// Returns the publication of a new service, whose first state need not be saved.
    pub fn new(service: Box<dyn ViewService>) -> Publication {
        let version = service.version();
        let (subscribers, told) = (BTreeSet::new(), BTreeMap::new());
        Publication { service, subscribers, told, saved: version, published: version }
    }

    /// Returns the publication of a service that continues from a saved state.
    ///
    /// # Errors
    /// If the bytes are no state of the service.
    pub fn restore(mut service: Box<dyn ViewService>, state: &[u8]) -> Result<Publication, String> {
        service.restore(state)?;
        Ok(Publication::new(service))
    }

    /// Reports an epoch that has started to the service, unless it knows of it.
    pub fn started(&mut self, role: Role, epoch: &Epoch) {
        let told = self.told.insert(role, epoch.number);
        if told.is_none_or(|told| told < epoch.number) {
            self.service.started(role, epoch.number, &epoch.members);
        }
    }

    /// Passes a function to the service by which it can check whether a server is dead.
    pub fn look(&mut self, is_dead: &dyn Fn(Id) -> bool) {
        self.service.look(is_dead);
    }

    /// Returns figures of the service that users see.
    pub fn stats(&self) -> Map<String, Value> {
        self.service.stats()
    }

    /// Passes a request to the service.
    ///
    /// # Errors
    /// If the service refuses the request.
    pub fn request(&mut self, from: Id, request: &[u8]) -> Result<(), String> {
        self.service.request(from, request)
    }

    /// Returns the state, to be saved or sent.
    ///
    /// # Panics
    /// If the state is longer than [`VIEWS_BYTES_MAX`].
    pub fn state(&self) -> Vec<u8> {
        let state = self.service.state();
        let found = state.len();
        assert!(found <= VIEWS_BYTES_MAX, "views of {found} bytes, at most {VIEWS_BYTES_MAX}");
        state
    }

    /// Returns whether the state has changed since it was last saved.
    pub fn is_due(&self) -> bool {
        self.service.version() != self.saved
    }

    /// Notes that the state is saved.
    pub fn saved(&mut self) {
        self.saved = self.service.version();
    }

    pub fn subscribe(&mut self, client: ClientId) {
        self.subscribers.insert(client);
    }

    pub fn closed(&mut self, client: ClientId) {
        self.subscribers.remove(&client);
    }

    /// Sends the state, which is saved already, to `asker`; if it is new, also to all subscribers.
    pub fn publish(&mut self, asker: Option<ClientId>, out: &mut Outbox) {
        let version = self.service.version();
        let is_new = std::mem::replace(&mut self.published, version) != version;
        if !is_new && asker.is_none() {
            return;
        }
        let bytes = Reply::Views(self.state()).to_bytes();
        let receivers = self.subscribers.iter().copied().filter(|_| is_new);
        let asker = asker.filter(|asker| !is_new || !self.subscribers.contains(asker));
        for client in receivers.chain(asker) {
            out.send(client, &bytes);
        }
    }
}
