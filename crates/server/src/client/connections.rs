//! Connections of a client to the job's servers and its coordinator, all in one thread.
//!
//! The client's own thread numbers the connections. Its [`Inbox`] receives the answers from all
//! connections, and an event for each connection that has ended. Pulls overtake pushes: pulls are short,
//! and a server answers a pull as soon as it has the required push, even if pushes to other shards are
//! still being sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use thinwire_job::elastic::coordinator_addresses;
use thinwire_link as link;
use thinwire_link::Deadline;
use thinwire_link::endpoint::{ClientId, Node, Outbox, Resolve};
use thinwire_member::Id;

use crate::client::inbox::{Event, Inbox};
use crate::client::pending_requests::Outbound;
use crate::client::watch::Watch;
use crate::error::{Error, Kind};
use crate::reason::Request;
use crate::wire::{FRAGMENT_BYTES, Fragments, FromClient, FromServer, Outgoing, send_some};

/// Largest message of a server, in bytes.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Connections to servers, by their numbers.
#[derive(Debug)]
pub struct Connections {
    client: Id,
    /// First message on each connection to a server; empty until the job's definition is known.
    hello: Vec<u8>,
    watch: Watch,
    inbox: Arc<Inbox>,
    connections: BTreeMap<u64, Connection>,
    numbers: BTreeMap<ClientId, u64>,
}

#[derive(Debug)]
struct Connection {
    server: Id,
    address: String,
    id: ClientId,
    stage: Stage,
    fragments: Fragments,
    pulls: VecDeque<Outbound>,
    pushes: VecDeque<Outbound>,
    sending: Outgoing,
}

#[derive(Debug, PartialEq)]
enum Stage {
    Dialling,
    /// The hello was sent to the server, which must welcome the client before this time.
    Greeting(Instant),
    Ready,
}

impl Connections {
    /// Returns the connections of a client with this id, or of a reader if it is `Id(0)`.
    pub fn new(client: Id, watch: Watch, inbox: &Arc<Inbox>) -> Connections {
        Connections {
            client,
            hello: Vec::new(),
            watch,
            inbox: Arc::clone(inbox),
            connections: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// Dials the coordinator.
    pub fn start(&mut self, now: Instant, out: &mut Outbox) {
        self.watch.start(now, out);
    }

    /// Sets the fingerprint of the job's definition; called before the first connection is opened.
    pub fn define(&mut self, definition: u64) {
        self.hello = FromClient::Hello { client: self.client, definition }.to_bytes();
    }

    /// Opens connection `number` to a server.
    pub fn open(
        &mut self,
        number: u64,
        server: Id,
        address: String,
        now: Instant,
        out: &mut Outbox,
    ) {
        let id = out.dial(&address, now);
        self.numbers.insert(id, number);
        let connection = Connection {
            server,
            address,
            id,
            stage: Stage::Dialling,
            fragments: Fragments::default(),
            pulls: VecDeque::new(),
            pushes: VecDeque::new(),
            sending: Outgoing::default(),
        };
        self.connections.insert(number, connection);
    }

    /// Closes a connection. The client gets no further events of it.
    pub fn close(&mut self, number: u64, out: &mut Outbox) {
        if let Some(connection) = self.connections.remove(&number) {
            self.numbers.remove(&connection.id);
            out.close(connection.id);
        }
    }

    /// Sends a request on a connection.
    pub fn send(&mut self, number: u64, request: Request, message: Outbound, out: &mut Outbox) {
        // The client was told that this connection is broken, and sends the request again.
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match request {
            Request::Pull(_) => connection.pulls.push_back(message),
            Request::Push(_) => connection.pushes.push_back(message),
        }
        if connection.stage == Stage::Ready {
            out.when_room(connection.id);
        }
    }

    /// Receives answers again after the inbox was full.
    pub fn release(&self, out: &mut Outbox) {
        self.numbers.keys().for_each(|id| out.release(*id));
    }

    /// Tells the client the reason why a connection ends.
    fn broke(&mut self, id: ClientId, error: Error) {
        let Some(number) = self.numbers.remove(&id) else { return };
        if let Some(connection) = self.connections.remove(&number) {
            self.inbox.put(Event::Broken(connection.server, number, error));
        }
    }

    fn connection(&mut self, id: ClientId) -> Option<&mut Connection> {
        self.connections.get_mut(self.numbers.get(&id)?)
    }

    fn take(&mut self, id: ClientId, message: &[u8], out: &mut Outbox) -> Result<(), Error> {
        let Some(connection) = self.connection(id) else { return Ok(()) };
        let Some(bytes) = connection.fragments.take(message, MESSAGE_BYTES_MAX)? else {
            return Ok(());
        };
        let message = FromServer::parse(&bytes)?;
        if connection.stage != Stage::Ready {
            connection.check(message)?;
            connection.stage = Stage::Ready;
            out.when_room(id);
        } else if self.inbox.put(Event::Reply(message)) {
            out.hold(id);
        }
        Ok(())
    }
}

impl Connection {
    /// Checks a server's answer to the hello.
    fn check(&self, answer: FromServer) -> Result<(), Error> {
        let (address, expected) = (&self.address, self.server);
        match answer {
            FromServer::Welcome { server } if server == expected => Ok(()),
            FromServer::Welcome { server } => {
                let message = format!("the server at {address} is {server}, expected {expected}");
                Err(Error::corrupt(message))
            }
            FromServer::Stranger { text } => Err(Error::new(Kind::Refused, text)),
            other => Err(Error::corrupt(format!("unexpected answer to a hello: {other:?}"))),
        }
    }

    /// Sends the next frame. Returns its length in bytes, or `None` if no request is left.
    fn send(&mut self, out: &mut Outbox) -> Option<usize> {
        if let Some(sent) = self.sending.send(self.id, out) {
            return Some(sent);
        }
        let message = self.pulls.pop_front().or_else(|| self.pushes.pop_front())?;
        self.sending = Outgoing::new(message);
        self.sending.send(self.id, out)
    }
}

impl Node for Connections {
    fn opened(&mut self, id: ClientId, now: Instant, out: &mut Outbox) {
        if self.watch.has(id) {
            return self.watch.opened(out);
        }
        if let Some(number) = self.numbers.get(&id) {
            out.send(id, &self.hello);
            let connection = self.connections.get_mut(number).into_iter();
            connection.for_each(|it| it.stage = Stage::Greeting(now + Deadline::Reply.duration()));
        }
    }

    fn received(
        &mut self,
        id: ClientId,
        message: &[u8],
        _now: Instant,
        out: &mut Outbox,
    ) -> Result<(), link::Error> {
        if self.watch.has(id) {
            let received = self.watch.received(message, out);
            return received
                .map_err(|error| link::Error::new(link::Kind::Corrupt, error.to_string()));
        }
        // The client hears the error itself; the connection is closed with a shorter one.
        self.take(id, message, out).or_else(|error| {
            self.broke(id, error);
            out.close(id);
            Ok(())
        })
    }

    fn hung_up(&mut self, id: ClientId, why: &link::Error, now: Instant, out: &mut Outbox) {
        if self.watch.has(id) {
            return self.watch.hung_up(why, now, out);
        }
        let Some(connection) = self.connection(id) else { return };
        let to = format!("the server at {}", connection.address);
        self.broke(id, why.repeat().of_connection(to).into());
    }

    fn has_room(&mut self, id: ClientId, _now: Instant, out: &mut Outbox) {
        let Some(connection) = self.connection(id) else { return };
        send_some(id, out, |out| connection.send(out));
    }

    fn deadline(&self) -> Option<Instant> {
        let until = |it: &Connection| match it.stage {
            Stage::Greeting(until) => Some(until),
            _ => None,
        };
        self.connections.values().filter_map(until).min()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) {
        let is_late = |it: &&Connection| matches!(it.stage, Stage::Greeting(until) if until <= now);
        let late: Vec<_> = self.connections.values().filter(is_late).map(|it| it.id).collect();
        for id in late {
            let Some(Connection { address, .. }) = self.connection(id) else { continue };
            let message = format!("the server at {address} does not say that it is ready");
            self.broke(id, Error::new(Kind::Timeout, message));
            out.close(id);
        }
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn dialled_message_bytes_max(&self) -> usize {
        // The job's state is longer than a message of a server.
        link::endpoint::MESSAGE_BYTES_MAX
    }

    fn resolve(&self) -> Resolve {
        coordinator_addresses
    }

    fn output_bytes_max(&self) -> usize {
        // Half of it is room for the next message.
        4 * FRAGMENT_BYTES
    }

    fn keeps_alive(&self, id: ClientId) -> bool {
        // A server does not answer a client that exceeds its rate, and the coordinator notices servers that are gone.
        self.watch.has(id)
    }
}
