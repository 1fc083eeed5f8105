//! A service and its clients, without their sockets: the part of a server that decides.
//!
//! Laws: `opened` before a client's first message and `closed` after its last, once each; messages of
//! one client in their order; in each turn every client gets at most [`TURN_MESSAGES_MAX`] messages
//! taken, whoever else sends how many.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::service::visitor::{Limits, Visitor};
use crate::service::{Action, ClientId, Outbox, Service};
use crate::{Error, Kind, Token};

/// The most messages that are taken from one client in one turn.
pub const TURN_MESSAGES_MAX: usize = 64;

/// A service and everybody who is connected to it.
#[derive(Debug)]
pub struct Dispatcher<S> {
    service: S,
    token: Token,
    limits: Limits,
    outbox: Outbox,
    clients: BTreeMap<ClientId, Client>,
    next: u64,
}

/// A connection and what is to be done about it.
#[derive(Debug)]
struct Client {
    visitor: Visitor,
    /// A message may be there to be taken.
    runnable: bool,
    /// The other side sends no more: the end, once what it sent has been taken.
    hung_up: Option<Error>,
    /// Why the connection is to be closed.
    end: Option<Error>,
}

/// A connection that has been taken out.
#[derive(Debug)]
pub struct Ended {
    /// Why it has ended, unless the server gave it up.
    pub error: Option<Error>,
    /// Whether it had not proven the token.
    pub is_stranger: bool,
}

impl<S: Service> Dispatcher<S> {
    /// A service that nobody is connected to yet.
    pub fn new(service: S, token: &Token) -> Dispatcher<S> {
        Dispatcher {
            limits: Limits {
                message_bytes_max: service.message_bytes_max(),
                output_bytes_max: service.output_bytes_max(),
            },
            service,
            token: token.clone(),
            outbox: Outbox::new(),
            clients: BTreeMap::new(),
            next: 0,
        }
    }

    /// Returns whether answers give way to the frames of links.
    pub fn gives_way(&self) -> bool {
        self.service.gives_way()
    }

    /// Takes in a stranger.
    pub fn accept(&mut self) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        let visitor = Visitor::new(&self.token, self.limits);
        // It gets this side's preamble, though nothing has come from it.
        let client = Client { visitor, runnable: true, hung_up: None, end: None };
        self.clients.insert(id, client);
        id
    }

    /// Returns all connections in the order of their numbers.
    pub fn visitors(&self) -> impl Iterator<Item = &Visitor> {
        self.clients.values().map(|client| &client.visitor)
    }

    /// Returns a connection as it is.
    pub fn visitor(&self, id: ClientId) -> Option<&Visitor> {
        self.clients.get(&id).map(|client| &client.visitor)
    }

    /// Returns a connection, for its buffers.
    pub fn visitor_mut(&mut self, id: ClientId) -> Option<&mut Visitor> {
        self.clients.get_mut(&id).map(|client| &mut client.visitor)
    }

    /// Returns the outbox, which has the reasons why connections were refused.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Notes that bytes of a connection were read or written, or that it ended with `result`.
    pub fn moved(&mut self, id: ClientId, result: Result<(), Error>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.runnable |= !client.visitor.input.is_empty();
        if let Err(error) = result {
            client.hung_up.get_or_insert(error);
        }
    }

    /// Returns the time of the next turn if nothing moves, `None` if there is none.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let busy = |client: &Client| client.runnable || client.hung_up.is_some();
        match self.clients.values().any(|client| busy(client) || client.end.is_some()) {
            true => Some(now),
            false => self.service.deadline(),
        }
    }

    /// Lets time pass and hands over a share of the messages that have come.
    pub fn turn(&mut self, now: Instant) {
        if self.service.deadline().is_some_and(|deadline| now >= deadline) {
            self.call(now, |service, now, out| service.tick(now, out));
        }
        let runnable = self.clients.iter().filter(|(_, client)| client.runnable);
        for id in runnable.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.serve(id, now);
        }
        for client in self.clients.values_mut().filter(|client| !client.runnable) {
            client.end = client.end.take().or(client.hung_up.take());
        }
    }

    /// Runs `call` on the service, and does what it asks for.
    pub fn call(&mut self, now: Instant, call: impl FnOnce(&mut S, Instant, &mut Outbox)) {
        call(&mut self.service, now, &mut self.outbox);
        for action in self.outbox.take() {
            self.act(action);
        }
    }

    /// Returns the connections that are to be closed.
    pub fn ended(&self) -> Vec<ClientId> {
        let ended = self.clients.iter().filter(|(_, client)| client.end.is_some());
        ended.map(|(id, _)| *id).collect()
    }

    /// Takes out a connection and tells the service, if it was a client's.
    pub fn remove(&mut self, id: ClientId, now: Instant) -> Option<Ended> {
        let client = self.clients.remove(&id)?;
        let is_stranger = client.visitor.is_stranger();
        if !is_stranger {
            self.call(now, |service, now, out| service.closed(id, now, out));
        }
        Some(Ended { error: client.end, is_stranger })
    }

    /// Hands over messages of one client, at most its share.
    fn serve(&mut self, id: ClientId, now: Instant) {
        for _ in 0..TURN_MESSAGES_MAX {
            // It may have been closed by its last message.
            let Some(client) = self.living(id) else { return };
            let was_stranger = client.visitor.is_stranger();
            match client.visitor.receive() {
                Ok(Some(message)) => self.deliver(id, &message, was_stranger, now),
                Ok(None) => {
                    client.runnable = false;
                    return client.visitor.shrink();
                }
                Err(error) => return self.end(id, error),
            }
        }
    }

    fn deliver(&mut self, id: ClientId, message: &[u8], first: bool, now: Instant) {
        // An empty message only asks for an answer: whether this is a server that takes it in.
        if message.is_empty() {
            self.act(Action::Send { to: id, message: Vec::new() });
        }
        if first {
            self.call(now, |service, now, out| service.opened(id, now, out));
        }
        // It may have been closed as soon as it was opened.
        if message.is_empty() || self.living(id).is_none() {
            return;
        }
        let mut received = Ok(());
        self.call(now, |service, now, out| received = service.received(id, message, now, out));
        if let Err(error) = received {
            self.end(id, error);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { to, message } => {
                let sent = self.living(to).map(|client| client.visitor.send(&message));
                if let Some(Err(error)) = sent {
                    self.end(to, error);
                }
            }
            Action::Close(id) => self.end(id, Error::new(Kind::Left, "was closed by the service")),
            Action::Hold(id) => {
                self.living(id).into_iter().for_each(|client| client.visitor.hold(true));
            }
            Action::Release(id) => {
                let Some(client) = self.living(id) else { return };
                client.visitor.hold(false);
                client.runnable = true;
            }
        }
    }

    /// A connection that is not to be closed.
    fn living(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(&id).filter(|client| client.end.is_none())
    }

    fn end(&mut self, id: ClientId, error: Error) {
        if let Some(client) = self.living(id) {
            client.runnable = false;
            client.end = Some(error);
        }
    }
}

#[cfg(test)]
mod tests;
