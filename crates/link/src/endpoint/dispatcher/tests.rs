//! Dispatchers without sockets: what nodes are told, and what clients get.

mod dials;

use std::time::Duration;

use super::*;
use crate::endpoint::OUTPUT_BYTES_MAX;
use crate::endpoint::messages::Messages;
use crate::endpoint::server_connection::tests::{shake, token};

/// Event that a node was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Opened(ClientId),
    Received(ClientId, Vec<u8>),
    Closed(ClientId),
    Ticked,
}

/// Records what it is told. The first byte of a message says what to do with the rest.
#[derive(Debug, Default)]
struct Recorder {
    told: Vec<Told>,
    deadline: Option<Instant>,
}

const KEEP: u8 = 1;
const ECHO: u8 = 2;
const REFUSE: u8 = 3;
const CLOSE: u8 = 4;

impl Node for Recorder {
    fn opened(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        self.told.push(Told::Opened(client));
    }

    fn received(
        &mut self,
        client: ClientId,
        message: &[u8],
        _now: Instant,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        self.told.push(Told::Received(client, message.to_vec()));
        match message[0] {
            ECHO => out.send(client, &message[1..]),
            REFUSE => return Err(Error::new(Kind::Invalid, "is refused")),
            CLOSE => out.close(client),
            _ => {}
        }
        Ok(())
    }

    fn closed(&mut self, client: ClientId, _now: Instant, _out: &mut Outbox) {
        self.told.push(Told::Closed(client));
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn tick(&mut self, _now: Instant, _out: &mut Outbox) {
        self.told.push(Told::Ticked);
        self.deadline = None;
    }

    fn message_bytes_max(&self) -> usize {
        1000
    }
}

/// A server and the other ends of its connections, which have said nothing yet.
struct Talk {
    server: Dispatcher<Recorder>,
    clients: Vec<(ClientId, Messages)>,
    now: Instant,
}

impl Talk {
    fn new(clients: usize) -> Talk {
        let mut server = Dispatcher::new(Recorder::default(), &token());
        let mut client = || {
            let id = server.accept();
            (id, shake(server.server_connection_mut(id).unwrap()).0)
        };
        let clients = (0..clients).map(|_| client()).collect();
        Talk { server, clients, now: Instant::now() }
    }

    fn say(&mut self, client: usize, message: &[u8]) {
        let (id, messages) = &mut self.clients[client];
        messages.seal(message, &mut self.server.server_connection_mut(*id).unwrap().input);
        self.server.moved(*id, Ok(()), self.now);
    }

    /// A turn, and the end of the connections that are to be closed.
    fn turn(&mut self) {
        self.server.turn(self.now);
        for id in self.server.ended() {
            self.server.remove(id, self.now);
        }
    }

    fn hear(&mut self, client: usize) -> Option<Vec<u8>> {
        let (id, messages) = &mut self.clients[client];
        let output = &mut self.server.server_connection_mut(*id)?.output;
        messages.receive(output, usize::MAX / 2).unwrap()
    }

    fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.server.node.told)
    }
}

const A: ClientId = ClientId(0);
const B: ClientId = ClientId(1);

#[test]
fn a_client_is_opened_before_its_first_message_and_closed_after_its_last() {
    let mut talk = Talk::new(2);
    talk.turn();
    assert_eq!(talk.told(), [], "a handshake alone makes no client");
    talk.say(0, &[KEEP, 7]);
    talk.say(0, &[ECHO, 8]);
    talk.turn();
    let (first, second) = (Told::Received(A, vec![KEEP, 7]), Told::Received(A, vec![ECHO, 8]));
    assert_eq!(talk.told(), [Told::Opened(A), first, second]);
    assert_eq!(talk.hear(0).unwrap(), [8]);

    talk.say(0, &[KEEP, 9]);
    talk.server.moved(A, Err(Error::new(Kind::Io, "closed the connection")), talk.now);
    talk.server.moved(B, Err(Error::new(Kind::Io, "closed the connection")), talk.now);
    talk.turn();
    assert_eq!(talk.told(), [Told::Received(A, vec![KEEP, 9]), Told::Closed(A)]);
    assert!(talk.server.server_connection(B).is_none(), "a stranger goes without a word");
    talk.turn();
    assert!(talk.server.remove(A, talk.now).is_none());
    assert_eq!(talk.told(), []);
}

#[test]
fn an_error_or_the_node_closes_one_client_and_nothing_of_it_is_taken_any_more() {
    for end in [REFUSE, CLOSE] {
        let mut talk = Talk::new(2);
        talk.say(0, &[end]);
        talk.say(0, &[KEEP]);
        talk.say(1, &[ECHO, 1]);
        talk.turn();
        let received = [(A, vec![end]), (B, vec![ECHO, 1])].map(|(id, m)| Told::Received(id, m));
        let [of_a, of_b] = received;
        let expected = [Told::Opened(A), of_a, Told::Opened(B), of_b, Told::Closed(A)];
        assert_eq!(talk.told(), expected);
        assert_eq!(talk.hear(1).unwrap(), [1]);
    }
}

#[test]
fn an_empty_message_is_answered_with_one_before_the_node_knows() {
    let mut talk = Talk::new(1);
    talk.say(0, &[]);
    talk.say(0, &[ECHO, 1]);
    talk.turn();
    assert_eq!(talk.hear(0).unwrap(), []);
    assert_eq!(talk.hear(0).unwrap(), [1]);
    assert_eq!(talk.told(), [Told::Opened(A), Told::Received(A, vec![ECHO, 1])]);
}

#[test]
fn a_client_that_floods_gets_its_share_of_a_turn() {
    let mut talk = Talk::new(2);
    let flood = TURN_MESSAGES_MAX * 3;
    (0..flood).for_each(|_| talk.say(0, &[KEEP]));
    talk.say(1, &[KEEP]);
    talk.turn();
    let of = |told: &[Told], who| {
        told.iter().filter(|told| matches!(told, Told::Received(id, _) if *id == who)).count()
    };
    let told = talk.told();
    assert_eq!((of(&told, A), of(&told, B)), (TURN_MESSAGES_MAX, 1));
    assert_eq!(talk.server.deadline(talk.now), Some(talk.now), "there is more to do");
    (0..3).for_each(|_| talk.turn());
    assert_eq!(of(&talk.told(), A), flood - TURN_MESSAGES_MAX);
    assert_eq!(talk.server.deadline(talk.now), None);
}

#[test]
fn a_client_that_does_not_read_is_closed_and_others_are_sent_all() {
    let mut talk = Talk::new(2);
    (0..2).for_each(|client| talk.say(client, &[KEEP]));
    talk.turn();
    talk.told();
    let message = vec![5; OUTPUT_BYTES_MAX / 4];
    for sent in 0..8 {
        talk.server
            .call(talk.now, |_, _, out| [A, B].iter().for_each(|id| out.send(*id, &message)));
        let unread = talk
            .server
            .server_connection(A)
            .map_or(0, |server_connection| server_connection.output.len());
        assert!(unread < OUTPUT_BYTES_MAX + message.len() + 100, "{sent}: {unread}");
        assert_eq!(talk.hear(1).unwrap(), message);
        talk.turn();
    }
    assert_eq!(talk.told(), [Told::Closed(A)]);
}

#[test]
fn strangers_are_sent_nothing() {
    let mut talk = Talk::new(1);
    talk.server.call(talk.now, |_, _, out| out.send(A, b"secret"));
    assert!(talk.server.server_connection(A).unwrap().output.is_empty());
}

#[test]
fn the_node_ticks_when_its_deadline_has_passed() {
    let mut talk = Talk::new(0);
    let deadline = talk.now + Duration::from_secs(1);
    talk.server.call(talk.now, |node, _, _| node.deadline = Some(deadline));
    assert_eq!(talk.server.deadline(talk.now), Some(deadline));
    talk.turn();
    assert_eq!(talk.told(), []);
    talk.now = deadline;
    talk.turn();
    assert_eq!(talk.told(), [Told::Ticked]);
}
