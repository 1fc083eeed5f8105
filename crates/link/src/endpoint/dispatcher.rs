//! A node and its clients, without their sockets: the part of an endpoint that decides.
//!
//! Laws: a node gets `opened` once, before a client's first message, and `closed` once, after its last;
//! for a dialled connection, `closed` once whether or not it was `opened`. It gets the messages of one
//! client in order. In each turn, at most [`TURN_MESSAGES_MAX`] messages of every client are taken,
//! however many others send.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::endpoint::keep_alive::{Asker, KeepAlive};
use crate::endpoint::server_connection::{Limits, ServerConnection};
use crate::endpoint::{Action, ClientId, Node, Outbox, Resolve};
use crate::shared_port::address::{Key, split_key};
use crate::{Error, Kind, Token};

/// The most messages that are taken from one client in one turn.
pub const TURN_MESSAGES_MAX: usize = 64;
/// Unsent bytes of a client up to which there is room for more.
const ROOM_BYTES: usize = 256 << 10;

/// A node and its connections.
#[derive(Debug)]
pub struct Dispatcher<S> {
    node: S,
    token: Token,
    limits: Limits,
    dialled_limits: Limits,
    outbox: Outbox,
    clients: BTreeMap<ClientId, Client>,
    /// Connections to dial that have no socket yet.
    dials: BTreeMap<ClientId, Dial>,
}

/// A connection that is to be dialled.
#[derive(Debug)]
struct Dial {
    /// Address, host:port, until the socket is being opened.
    address: Option<String>,
    /// The key of the node behind a shared port.
    key: Option<Key>,
    at: Instant,
    /// The reason for which it will have no socket.
    end: Option<Error>,
}

/// A connection and its state.
#[derive(Debug)]
struct Client {
    server_connection: ServerConnection,
    /// Whether a message may be there to be taken.
    runnable: bool,
    /// The other side sends no more: the error with which the connection ends, once its messages have
    /// been taken.
    hung_up: Option<Error>,
    /// The error with which the connection is to be closed.
    end: Option<Error>,
    /// Whether the node waits for room in the output.
    wants_room: bool,
    /// Signs of life, once a dialled connection is open.
    keep_alive: Option<KeepAlive>,
}

impl Client {
    fn new(server_connection: ServerConnection) -> Client {
        // It gets this side's preamble, though nothing has come from it.
        let (runnable, hung_up, end) = (true, None, None);
        Client { server_connection, runnable, hung_up, end, wants_room: false, keep_alive: None }
    }

    /// Asks a dialled node that is open for an answer.
    fn ask(&mut self, asker: Asker, now: Instant) {
        let Some(alive) = &mut self.keep_alive else { return };
        alive.ask(asker, now);
        if let Err(error) = self.server_connection.send(&[]) {
            self.end.get_or_insert(error);
        }
    }

    fn is_waited_for_with_room(&self) -> bool {
        self.wants_room
            && !self.server_connection.is_unauthenticated()
            && self.server_connection.output.len() <= ROOM_BYTES
    }
}

/// A connection that was removed.
#[derive(Debug)]
pub struct Ended {
    /// The error with which it has ended.
    pub error: Error,
    /// Whether it had not proven the token.
    pub is_unauthenticated: bool,
    /// Whether this server had dialled it.
    pub is_dialled: bool,
}

impl<S: Node> Dispatcher<S> {
    /// Returns a node without connections.
    pub fn new(node: S, token: &Token) -> Dispatcher<S> {
        Dispatcher {
            limits: Limits {
                message_bytes_max: node.message_bytes_max(),
                output_bytes_max: node.output_bytes_max(),
            },
            dialled_limits: Limits {
                message_bytes_max: node.dialled_message_bytes_max(),
                output_bytes_max: node.output_bytes_max(),
            },
            node,
            token: token.clone(),
            outbox: Outbox::new(),
            clients: BTreeMap::new(),
            dials: BTreeMap::new(),
        }
    }

    /// Returns the function that finds the addresses to dial.
    pub fn resolve(&self) -> Resolve {
        self.node.resolve()
    }

    /// Returns whether answers of the node wait while links have other frames to send; see
    /// [`Node::gives_way`].
    pub fn gives_way(&self) -> bool {
        self.node.gives_way()
    }

    /// Adds an unauthenticated peer.
    pub fn accept(&mut self) -> ClientId {
        let id = self.outbox.next_id();
        self.clients.insert(id, Client::new(ServerConnection::new(&self.token, self.limits)));
        id
    }

    /// Returns a connection whose socket is to be opened now, and its address.
    pub fn next_dial(&mut self, now: Instant) -> Option<(ClientId, String)> {
        let due = |dial: &Dial| now >= dial.at && dial.end.is_none();
        self.dials.iter_mut().filter(|(_, dial)| due(dial)).find_map(|(id, dial)| {
            let address = dial.address.take()?;
            Some((*id, address))
        })
    }

    /// Adds the node at the other end of a socket that was opened for [`Dispatcher::next_dial`].
    /// Returns whether the connection is still wanted.
    pub fn dialled(&mut self, id: ClientId) -> bool {
        let wanted = self.dials.extract_if(id..=id, |_, dial| dial.end.is_none()).next();
        wanted.is_some_and(|(_, dial)| {
            let node = ServerConnection::dialled(&self.token, self.dialled_limits, dial.key);
            self.clients.insert(id, Client::new(node)).is_none()
        })
    }

    /// Notes that no socket could be opened for [`Dispatcher::next_dial`].
    pub fn not_dialled(&mut self, id: ClientId, error: Error) {
        if let Some(dial) = self.dials.get_mut(&id) {
            dial.end = Some(error);
        }
    }

    /// Returns all connections in the order of their numbers.
    pub fn server_connections(&self) -> impl Iterator<Item = &ServerConnection> {
        self.clients.values().map(|client| &client.server_connection)
    }

    /// Returns a connection in its present state.
    pub fn server_connection(&self, id: ClientId) -> Option<&ServerConnection> {
        self.clients.get(&id).map(|client| &client.server_connection)
    }

    /// Returns a connection, for its buffers.
    pub fn server_connection_mut(&mut self, id: ClientId) -> Option<&mut ServerConnection> {
        self.clients.get_mut(&id).map(|client| &mut client.server_connection)
    }

    /// Returns the outbox, which has the reasons why connections were refused.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Notes that bytes of a connection were read or written, or that it ended with `result`.
    pub fn moved(&mut self, id: ClientId, result: Result<(), Error>, now: Instant) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.runnable |= !client.server_connection.input.is_empty();
        client.keep_alive.iter_mut().for_each(|alive| alive.moved(now));
        if let Err(error) = result {
            client.hung_up.get_or_insert(error);
        }
    }

    /// Gives up a connection that is not open yet.
    pub fn give_up(&mut self, id: ClientId, error: Error) {
        self.end(id, error);
    }

    /// Returns the time at which the next turn is due if nothing moves; `None` if none is due.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let busy = |client: &Client| {
            client.runnable
                || client.hung_up.is_some()
                || client.end.is_some()
                || client.is_waited_for_with_room()
        };
        if self.clients.values().any(busy) || self.dials.values().any(|dial| dial.end.is_some()) {
            return Some(now);
        }
        let alive = self.clients.values().filter_map(|client| client.keep_alive.as_ref());
        let dials = self.dials.values().filter(|dial| dial.address.is_some()).map(|dial| dial.at);
        let own = alive.filter_map(KeepAlive::deadline).chain(dials).min();
        [own, self.node.deadline()].into_iter().flatten().min()
    }

    /// Advances the time, and hands the node a share of the messages that have come.
    pub fn turn(&mut self, now: Instant) {
        if self.node.deadline().is_some_and(|deadline| now >= deadline) {
            self.call(now, |node, now, out| node.tick(now, out));
        }
        let runnable = self.clients.iter().filter(|(_, client)| client.runnable);
        for id in runnable.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.serve(id, now);
        }
        self.offer_room(now);
        self.keep_alive(now);
        for client in self.clients.values_mut().filter(|client| !client.runnable) {
            client.end = client.end.take().or(client.hung_up.take());
        }
        let failed: Vec<_> = self.dials.extract_if(.., |_, dial| dial.end.is_some()).collect();
        for (id, error) in failed.into_iter().filter_map(|(id, dial)| Some((id, dial.end?))) {
            self.call(now, |node, now, out| node.hung_up(id, &error, now, out));
        }
    }

    fn offer_room(&mut self, now: Instant) {
        let waiting = self.clients.iter().filter(|(_, client)| client.is_waited_for_with_room());
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(client) = self.living(id) else { continue };
            client.wants_room = false;
            self.call(now, |node, now, out| node.has_room(id, now, out));
        }
    }

    /// Asks dialled nodes for signs of life, and gives up those that are silent.
    fn keep_alive(&mut self, now: Instant) {
        for client in self.clients.values_mut() {
            let Some(alive) = &client.keep_alive else { continue };
            if alive.has_failed(now) {
                let silent = Error::new(Kind::Timeout, "does not answer");
                client.hung_up.get_or_insert(silent);
                client.runnable = false;
            } else if alive.is_due(now) {
                client.ask(Asker::Endpoint, now);
            }
        }
    }

    /// Runs `call` on the node, and carries out the actions that the node asks for.
    pub fn call(&mut self, now: Instant, call: impl FnOnce(&mut S, Instant, &mut Outbox)) {
        call(&mut self.node, now, &mut self.outbox);
        for action in self.outbox.take() {
            self.act(action, now);
        }
    }

    /// Returns the connections that are to be closed.
    pub fn ended(&self) -> Vec<ClientId> {
        let ended = self.clients.iter().filter(|(_, client)| client.end.is_some());
        ended.map(|(id, _)| *id).collect()
    }

    /// Removes a connection. Tells the node, unless the other end was an unauthenticated peer.
    pub fn remove(&mut self, id: ClientId, now: Instant) -> Option<Ended> {
        let client = self.clients.remove(&id)?;
        let (is_unauthenticated, is_dialled) =
            (client.server_connection.is_unauthenticated(), client.server_connection.is_dialled());
        let error = client
            .end
            .unwrap_or_else(|| Error::new(Kind::Timeout, "did not prove the job token in time"));
        if is_dialled {
            self.call(now, |node, now, out| node.hung_up(id, &error, now, out));
        } else if !is_unauthenticated {
            self.call(now, |node, now, out| node.closed(id, now, out));
        }
        Some(Ended { error, is_unauthenticated, is_dialled })
    }

    /// Hands over messages of one client, at most its share.
    fn serve(&mut self, id: ClientId, now: Instant) {
        for _ in 0..TURN_MESSAGES_MAX {
            // It may have been closed by its last message.
            let Some(client) = self.living(id) else { return };
            let is_first = client.server_connection.is_unauthenticated();
            match client.server_connection.receive() {
                Ok(Some(message)) if is_first => self.open(id, &message, now),
                Ok(Some(message)) => self.deliver(id, &message, now),
                Ok(None) => {
                    client.runnable = false;
                    return client.server_connection.shrink();
                }
                Err(error) => return self.end(id, error),
            }
        }
    }

    /// Takes the first message of a connection, by which it has proven the token.
    fn open(&mut self, id: ClientId, message: &[u8], now: Instant) {
        let keeps_alive = self.node.keeps_alive(id);
        let Some(client) = self.living(id) else { return };
        if client.server_connection.is_dialled() {
            client.keep_alive = Some(match keeps_alive {
                true => KeepAlive::new(now),
                false => KeepAlive::of_silent(now),
            });
        } else if message.is_empty() {
            self.answer(id, now);
        }
        self.call(now, |node, now, out| node.opened(id, now, out));
        self.hand_over(id, message, now);
    }

    fn deliver(&mut self, id: ClientId, message: &[u8], now: Instant) {
        let Some(client) = self.living(id) else { return };
        if !message.is_empty() {
            self.hand_over(id, message, now);
        } else if !client.server_connection.is_dialled() {
            self.answer(id, now);
        } else if client.keep_alive.as_mut().is_some_and(|alive| alive.answered(now)) {
            self.call(now, |node, now, out| node.answered(id, now, out));
        }
    }

    /// Answers an empty message, by which a client checks that this is a server that has accepted it.
    fn answer(&mut self, id: ClientId, now: Instant) {
        self.act(Action::Send { to: id, message: Vec::new() }, now);
    }

    /// Gives a message to the node, unless it is empty.
    fn hand_over(&mut self, id: ClientId, message: &[u8], now: Instant) {
        // It may have been closed as soon as it was opened.
        if message.is_empty() || self.living(id).is_none() {
            return;
        }
        let mut received = Ok(());
        self.call(now, |node, now, out| received = node.received(id, message, now, out));
        if let Err(error) = received {
            self.end(id, error);
        }
    }

    fn act(&mut self, action: Action, now: Instant) {
        match action {
            Action::Dial { id, address, at } => {
                let dial = match split_key(&address) {
                    Ok((name, key)) => Dial { address: Some(name.to_owned()), key, at, end: None },
                    Err(error) => Dial { address: None, key: None, at, end: Some(error) },
                };
                self.dials.insert(id, dial);
            }
            Action::WhenRoom(id) => {
                self.living(id).into_iter().for_each(|client| client.wants_room = true);
            }
            Action::Ping(id) => {
                self.living(id).into_iter().for_each(|client| client.ask(Asker::Node, now));
            }
            Action::Close(id) if self.dials.contains_key(&id) => self.not_dialled(id, closed()),
            Action::Send { to, message } => {
                let sent = self.living(to).map(|client| client.server_connection.send(&message));
                if let Some(Err(error)) = sent {
                    self.end(to, error);
                }
            }
            Action::Close(id) => self.end(id, closed()),
            Action::Hold(id) => {
                self.living(id).into_iter().for_each(|client| client.server_connection.hold());
            }
            Action::Release(id) => {
                let Some(client) = self.living(id) else { return };
                client.server_connection.release();
                client.runnable = true;
            }
        }
    }

    /// Returns a connection that is not to be closed.
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

fn closed() -> Error {
    Error::new(Kind::Left, "was closed by the service")
}

#[cfg(test)]
mod tests;
