//! Node of a server: its service and its connection to the coordinator, on one endpoint.

use std::time::Instant;

use thinwire_job::elastic::coordinator_addresses;
use thinwire_link::endpoint::{ClientId, MESSAGE_BYTES_MAX, Node, Outbox, Resolve};
use thinwire_link::{Error, Kind};

use super::coordinator_client::CoordinatorClient;
use crate::service::ServerService;

/// Everything of a server that its endpoint drives.
pub struct ServerNode {
    service: ServerService,
    /// `None` before the server has joined the job.
    coordinator: Option<CoordinatorClient>,
}

impl ServerNode {
    /// Creates the node of a server that has not joined a job.
    pub fn new(service: ServerService) -> ServerNode {
        ServerNode { service, coordinator: None }
    }

    /// Connects to the coordinator.
    pub fn join(&mut self, mut coordinator: CoordinatorClient, now: Instant, out: &mut Outbox) {
        coordinator.start(now, out);
        self.coordinator = Some(coordinator);
    }

    /// Returns the client of the coordinator, if `client` is its connection.
    fn coordinator(&mut self, client: ClientId) -> Option<&mut CoordinatorClient> {
        self.coordinator.as_mut().filter(|coordinator| coordinator.has(client))
    }
}

impl Node for ServerNode {
    fn opened(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        match self.coordinator(client) {
            Some(coordinator) => coordinator.opened(out),
            None => self.service.opened(client, now, out),
        }
    }

    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let ServerNode { service, coordinator } = self;
        match coordinator.as_mut().filter(|coordinator| coordinator.has(client)) {
            Some(coordinator) => coordinator
                .received(message, service, now, out)
                .map_err(|error| Error::new(Kind::Corrupt, error.to_string())),
            None => service.received(client, message, now, out),
        }
    }

    fn closed(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        self.service.closed(client, now, out);
    }

    fn hung_up(&mut self, client: ClientId, why: &Error, now: Instant, out: &mut Outbox) {
        match self.coordinator(client) {
            Some(coordinator) => coordinator.hung_up(why, now, out),
            None => self.service.hung_up(client, why, now, out),
        }
    }

    fn has_room(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        self.service.has_room(client, now, out);
    }

    fn answered(&mut self, client: ClientId, now: Instant, out: &mut Outbox) {
        self.service.answered(client, now, out);
    }

    fn deadline(&self) -> Option<Instant> {
        let coordinator = self.coordinator.as_ref().and_then(CoordinatorClient::deadline);
        [coordinator, self.service.deadline()].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.service.deadline()) {
            self.service.tick(now, out);
        }
        let coordinator = self.coordinator.as_mut().filter(|it| is_due(it.deadline()));
        coordinator.into_iter().for_each(|it| it.look(&mut self.service, now, out));
    }

    fn message_bytes_max(&self) -> usize {
        self.service.message_bytes_max()
    }

    fn dialled_message_bytes_max(&self) -> usize {
        // The job's state is longer than a message of a server.
        MESSAGE_BYTES_MAX
    }

    fn resolve(&self) -> Resolve {
        coordinator_addresses
    }

    fn output_bytes_max(&self) -> usize {
        self.service.output_bytes_max()
    }
}
