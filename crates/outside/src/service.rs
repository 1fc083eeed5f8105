//! Law of services, without sockets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use thinwire_link::endpoint::{ClientId, Node, Outbox};
use thinwire_link::fuzzing::{Dispatcher, Handshake, Messages, Preamble, Role};
use thinwire_link::{Error, Kind, Token};

use crate::draw::Draw;

/// Number of connections at a time.
const CLIENTS: usize = 3;
/// The longest message of a client, in bytes: of several records.
const MESSAGE_BYTES_MAX: usize = 150_000;

/// Messages on their way in both directions and not delivered yet, by client.
type Expected = Arc<Mutex<BTreeMap<ClientId, Under>>>;

#[derive(Default)]
struct Under {
    to_service: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    opened: bool,
    held: bool,
}

/// Applies the action in the first byte of a message to the client in the second, and checks that it
/// learns of every client and message once and in order.
struct Script {
    expected: Expected,
}

impl Script {
    fn send(&self, to: ClientId, message: &[u8], out: &mut Outbox) {
        out.send(to, message);
        let mut expected = self.expected.lock().expect("no holder panics");
        // What is sent to an unauthenticated peer is dropped.
        if let Some(under) = expected.get_mut(&to).filter(|under| under.opened) {
            under.to_client.push_back(message.to_vec());
        }
    }

    /// Changes what is expected of a client, if it is there.
    fn expect(&self, client: ClientId, change: impl FnOnce(&mut Under)) {
        self.expected.lock().expect("no holder panics").get_mut(&client).map(change);
    }
}

impl Node for Script {
    fn opened(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        let mut expected = self.expected.lock().expect("no holder panics");
        let under = expected.get_mut(&client).expect("no client comes back");
        assert!(!under.opened, "{client:?} opened twice");
        under.opened = true;
    }

    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        _now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let mut expected = self.expected.lock().expect("no holder panics");
        let under = expected.get_mut(&client).expect("nothing after the end");
        assert!(under.opened && !under.held, "a message of {client:?} out of turn");
        assert_eq!(under.to_service.pop_front().as_deref(), Some(message));
        drop(expected);
        let other = ClientId(u64::from(message.get(1).copied().unwrap_or(0)));
        match message[0] % 8 {
            0 => self.send(client, message, out),
            1 => self.send(other, message, out),
            2 => (0..20).for_each(|_| self.send(other, message, out)),
            3 => out.close(other),
            4 => {
                out.hold(client);
                self.expect(client, |under| under.held = true);
            }
            5 => {
                out.release(other);
                self.expect(other, |under| under.held = false);
            }
            6 => return Err(Error::new(Kind::Invalid, "is refused")),
            _ => {}
        }
        Ok(())
    }

    fn closed(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        let mut expected = self.expected.lock().expect("no holder panics");
        let under = expected.remove(&client).expect("closed once");
        assert!(under.opened, "{client:?} closed before it was opened");
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }
}

/// The client's end of a connection.
struct Talk {
    id: ClientId,
    messages: Messages,
    /// Bytes that the server has not read.
    wire: Vec<u8>,
    expected: Expected,
}

/// Checks, for any messages and cuts of clients with the token, that services and clients get messages
/// whole, once and in order, that a service learns of every client's beginning and end once, and that
/// the buffers of the server stay bounded.
pub fn service(bytes: &[u8]) {
    let (mut draw, now, expected) = (Draw::new(bytes), Instant::now(), Expected::default());
    let script = Script { expected: expected.clone() };
    let mut server = Dispatcher::new(script, &token());
    let mut talks: Vec<Talk> = (0..CLIENTS).map(|_| Talk::new(&mut server, &expected)).collect();
    while !draw.is_over() {
        let (what, who) = (draw.u8(), usize::from(draw.u8()) % CLIENTS);
        let talk = &mut talks[who];
        match what % 4 {
            0 => talk.say(&mut draw),
            1 => talk.pass(usize::from(draw.u16()) * 4, &mut server),
            2 => talk.read(&mut server),
            _ => server.moved(talk.id, Err(Error::new(Kind::Io, "closed the connection")), now),
        }
        server.turn(now);
        for talk in &mut talks {
            talk.check(&mut server, now);
        }
    }
}

fn token() -> Token {
    Token::new("a token that nobody guesses")
}

impl Talk {
    /// Returns a client that has completed its handshake and sent its greeting.
    fn new(server: &mut Dispatcher<Script>, expected: &Expected) -> Talk {
        let id = server.accept();
        let mut other = Handshake::new(Role::Initiator, &token(), Preamble { encrypt: true });
        let connection = server.server_connection_mut(id).expect("it has just come");
        let session = loop {
            let done = other.advance(&mut connection.output, &mut connection.input);
            if let Some((session, _)) = done.expect("both have one token") {
                break session;
            }
            assert!(connection.receive().expect("a handshake").is_none());
        };
        let (mut messages, mut wire) = (Messages::new(session), Vec::new());
        messages.seal(&[], &mut wire);
        // The service never sees the greeting, and answers with another.
        let under = Under { to_client: VecDeque::from([Vec::new()]), ..Under::default() };
        expected.lock().expect("no holder panics").insert(id, under);
        Talk { id, messages, wire, expected: expected.clone() }
    }

    /// Seals a message; an empty one would be answered by the server alone.
    fn say(&mut self, draw: &mut Draw<'_>) {
        let (kind, other, length) = (draw.u8(), draw.u8() % 8, usize::from(draw.u16()) * 3);
        let mut message = vec![kind; 2 + length.min(MESSAGE_BYTES_MAX - 2)];
        message[1] = other;
        self.messages.seal(&message, &mut self.wire);
        let mut expected = self.expected.lock().expect("no holder panics");
        let under = expected.get_mut(&self.id).expect("a connection that has not ended");
        under.to_service.push_back(message);
    }

    /// Passes on bytes, at most as many as the server reads ahead.
    fn pass(&mut self, count: usize, server: &mut Dispatcher<Script>) {
        let connection =
            server.server_connection_mut(self.id).expect("a connection that has not ended");
        let room = connection.input_bytes_max().saturating_sub(connection.input.len());
        let count = count.min(room).min(self.wire.len());
        connection.input.extend(self.wire.drain(..count));
        server.moved(self.id, Ok(()), Instant::now());
    }

    fn read(&mut self, server: &mut Dispatcher<Script>) {
        let connection =
            server.server_connection_mut(self.id).expect("a connection that has not ended");
        let mut expected = self.expected.lock().expect("no holder panics");
        let under = expected.get_mut(&self.id).expect("a connection that has not ended");
        while let Some(message) = self
            .messages
            .receive(&mut connection.output, usize::MAX / 2)
            .expect("the server's records")
        {
            assert_eq!(under.to_client.pop_front(), Some(message));
        }
        drop(expected);
        server.moved(self.id, Ok(()), Instant::now());
    }

    /// Checks the memory that the server holds for this connection, and begins another connection if it
    /// is over.
    fn check(&mut self, server: &mut Dispatcher<Script>, now: Instant) {
        let connection =
            server.server_connection(self.id).expect("a connection that has not ended");
        let (input, output) = (connection.input.len(), connection.output.len());
        assert!(input <= connection.input_bytes_max(), "{input}");
        let most = thinwire_link::endpoint::OUTPUT_BYTES_MAX + MESSAGE_BYTES_MAX + 100;
        assert!(output <= most, "{output}");
        if server.ended().contains(&self.id) {
            let ended = server.remove(self.id, now).expect("it was there");
            let was_told = !self.expected.lock().expect("no holder panics").contains_key(&self.id);
            assert_eq!(was_told, !ended.is_unauthenticated, "the end of a client is told");
            self.expected.lock().expect("no holder panics").remove(&self.id);
            *self = Talk::new(server, &self.expected.clone());
        }
    }
}
