//! Connections to peers without sockets: which peers are dialled, and the messages and losses that follow.

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use thinwire_link::endpoint::Action;

use super::*;
use crate::wire::Fragments;
use crate::write::{Part, Write};

const PEER: Id = Id(Id::SERVER_BIT | 2);

/// A server with one peer, whose connection is dialled.
struct Rig {
    peers: Peers,
    out: Outbox,
    now: Instant,
    lost: Arc<Mutex<Vec<Id>>>,
}

impl Rig {
    fn new() -> Rig {
        let (mut peers, lost) = (Peers::default(), Arc::new(Mutex::new(Vec::new())));
        let told = Arc::clone(&lost);
        peers.introduce(
            Id(Id::SERVER_BIT | 1),
            9,
            Arc::new(move |id| told.lock().unwrap().push(id)),
        );
        let (mut out, now) = (Outbox::new(), Instant::now());
        peers.renew(&BTreeMap::from([(PEER, "host:1")]), now, &mut out);
        Rig { peers, out, now, lost }
    }

    /// Takes the connection that is dialled, and the pause before.
    fn dialled(&mut self) -> (ClientId, Duration) {
        let actions = self.out.take();
        let [Action::Dial { id, address, at }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(address, "host:1");
        (*id, *at - self.now)
    }

    fn welcomed(&mut self) -> ClientId {
        let (connection, _) = self.dialled();
        self.peers.opened(connection, &mut self.out);
        let hello = PeerMessage::Hello { server: Id(Id::SERVER_BIT | 1), definition: 9 };
        let expected = [Action::Send { to: connection, message: hello.to_bytes() }];
        assert_eq!(self.out.take(), expected);
        let welcome = FromServer::Welcome { server: PEER }.to_bytes();
        self.peers.received(connection, &welcome).unwrap();
        connection
    }

    fn put(&mut self, message: Message) {
        let tables = || Ok::<_, Infallible>(Vec::new());
        self.peers.put(PEER, 3, message, tables, &mut self.out).unwrap();
    }
}

fn entries(count: usize, values: usize) -> Vec<Entry> {
    let part = Part { table: 0, rows: vec![0], gradient: vec![1.0; values].into() };
    let write = Arc::new(Write::Update { pushes: Vec::new(), parts: vec![part] });
    vec![Entry { view: 1, write }; count]
}

fn forward(after: u64, entries: Vec<Entry>) -> Message {
    Message::Forward { view: 1, after, entries, committed: 4 }
}

#[test]
fn entries_are_divided_into_messages_and_none_is_missing() {
    let entries = entries(8, 300_000);
    let message = |message| Outbound { shard: 3, message, tables: Vec::new() };
    let cut = |at: usize, count| message(forward(9 + at as u64, entries[at..at + count].to_vec()));
    assert_eq!(divided(message(forward(9, entries.clone()))), [cut(0, 3), cut(3, 3), cut(6, 2)]);
    let empty = message(forward(9, Vec::new()));
    assert_eq!(divided(empty.clone()), [empty]);
}

#[test]
fn a_peer_that_cannot_be_reached_is_dialled_with_growing_pauses_and_reported() {
    let mut rig = Rig::new();
    let mut pauses = Vec::new();
    for _ in 0..=FAILURES {
        let (connection, pause) = rig.dialled();
        pauses.push(pause);
        rig.peers.closed(connection, rig.now, &mut rig.out);
    }
    assert!(pauses.is_sorted() && pauses[0].is_zero() && pauses[1] < pauses[3], "{pauses:?}");
    assert_eq!(*rig.lost.lock().unwrap(), [PEER, PEER], "the first and the ninth failure");
    let connection = rig.welcomed();
    rig.peers.closed(connection, rig.now, &mut rig.out);
    assert_eq!(rig.dialled().1, pauses[1], "the pauses begin anew");
    assert_eq!(rig.lost.lock().unwrap().len(), 2, "a broken connection is no failure to connect");
}

#[test]
fn letters_are_sent_whole_and_in_order_and_count_as_arrived_when_a_ping_is_answered() {
    let mut rig = Rig::new();
    rig.put(forward(0, entries(1, 1)));
    assert!(rig.peers.drain(PEER).is_empty(), "there is no connection yet");
    let connection = rig.welcomed();
    let sent = [forward(0, entries(2, 300_000)), forward(2, entries(1, 1))];
    sent.iter().for_each(|message| rig.put(message.clone()));
    let (mut fragments, mut arrived, mut pings) = (Fragments::default(), Vec::new(), 0);
    let mut actions = VecDeque::from(rig.out.take());
    while let Some(action) = actions.pop_front() {
        match action {
            Action::WhenRoom(_) => rig.peers.has_room(connection, &mut rig.out),
            Action::Ping(_) => pings += 1,
            Action::Send { message, .. } => {
                let message = fragments.take(&message, usize::MAX).unwrap();
                arrived.extend(message.map(|bytes| PeerMessage::parse(&bytes).unwrap()));
            }
            other => panic!("{other:?}"),
        }
        actions.extend(rig.out.take());
    }
    let message = |message| PeerMessage::Message { shard: 3, message, tables: Vec::new() };
    assert!(arrived == sent.clone().map(message));
    assert_eq!(pings, 1, "it is behind both");
    // Nothing is repeated before the answer, and all of it afterwards.
    rig.put(sent[1].clone());
    assert!(rig.peers.drain(PEER).is_empty());
    rig.peers.answered(connection, &mut rig.out);
    assert!(rig.out.take().is_empty(), "nothing was sent since");
    rig.put(sent[1].clone());
    assert_eq!(rig.peers.drain(PEER).len(), 1);
}

#[test]
fn a_peer_that_moved_or_is_not_the_one_expected_gets_nothing() {
    let mut rig = Rig::new();
    let (connection, _) = rig.dialled();
    let other = FromServer::Welcome { server: Id(Id::SERVER_BIT | 3) }.to_bytes();
    let error = rig.peers.received(connection, &other).unwrap_err();
    assert!(error.context.contains("host:1 is not"), "{error}");
    rig.peers.renew(&BTreeMap::from([(PEER, "host:2")]), rig.now, &mut rig.out);
    let actions = rig.out.take();
    let [Action::Close(closed), Action::Dial { address, .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!((*closed, &address[..]), (connection, "host:2"));
    rig.peers.closed(connection, rig.now, &mut rig.out);
    assert!(rig.out.take().is_empty() && rig.lost.lock().unwrap().is_empty());
}
