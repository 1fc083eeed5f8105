//! Two dispatchers, one of which dials the other: a pair without sockets, under its own clock.

use std::time::Duration;

use super::super::*;
use crate::Deadline;
use crate::endpoint::server_connection::tests::token;

/// Event that a node was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Opened,
    Received(Vec<u8>),
    Answered,
    Closed,
}

/// Records what it is told; sends `left` bytes as room allows, in messages of `MESSAGE_BYTES`.
#[derive(Debug, Default)]
struct Recorder {
    told: Vec<Told>,
    left: usize,
}

const MESSAGE_BYTES: usize = 100_000;

impl Node for Recorder {
    fn opened(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {
        self.told.push(Told::Opened);
    }

    fn received(
        &mut self,
        _client: ClientId,
        message: &[u8],
        _now: Instant,
        _out: &mut Outbox,
    ) -> Result<(), Error> {
        self.told.push(Told::Received(message.to_vec()));
        Ok(())
    }

    fn closed(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {
        self.told.push(Told::Closed);
    }

    fn has_room(&mut self, client: ClientId, _now: Instant, out: &mut Outbox) {
        if self.left > 0 {
            self.left -= MESSAGE_BYTES;
            out.send(client, &[7; MESSAGE_BYTES]);
            out.when_room(client);
        }
    }

    fn answered(&mut self, _client: ClientId, _now: Instant, _out: &mut Outbox) {
        self.told.push(Told::Answered);
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES
    }
}

/// A node that has dialled another one.
struct Pair {
    from: Dispatcher<Recorder>,
    to: Dispatcher<Recorder>,
    /// The connection, at either end.
    ids: [ClientId; 2],
    now: Instant,
}

impl Pair {
    fn new() -> Pair {
        let (now, mut ids) = (Instant::now(), Vec::new());
        let [mut from, mut to] = [(); 2].map(|()| Dispatcher::new(Recorder::default(), &token()));
        from.call(now, |_, now, out| ids.push(out.dial("host:1", now)));
        assert_eq!(from.next_dial(now), Some((ids[0], "host:1".to_owned())));
        assert_eq!(from.next_dial(now), None, "once");
        assert!(from.dialled(ids[0]));
        ids.push(to.accept());
        Pair { from, to, ids: ids.try_into().unwrap(), now }
    }

    /// A turn of each, and the bytes of both.
    fn turn(&mut self) {
        let [a, b] = self.ids;
        for side in [&mut self.from, &mut self.to] {
            side.turn(self.now);
            for id in side.ended() {
                side.remove(id, self.now);
            }
        }
        if let (Some(from), Some(to)) =
            (self.from.server_connection_mut(a), self.to.server_connection_mut(b))
        {
            let bytes = [std::mem::take(&mut from.output), std::mem::take(&mut to.output)];
            to.input.extend_from_slice(&bytes[0]);
            from.input.extend_from_slice(&bytes[1]);
            if bytes.iter().any(|bytes| !bytes.is_empty()) {
                self.from.moved(a, Ok(()), self.now);
                self.to.moved(b, Ok(()), self.now);
            }
        }
    }

    fn open() -> Pair {
        let mut pair = Pair::new();
        (0..6).for_each(|_| pair.turn());
        assert_eq!(pair.told(), [vec![Told::Opened], vec![Told::Opened]]);
        pair
    }

    fn told(&mut self) -> [Vec<Told>; 2] {
        [&mut self.from, &mut self.to].map(|side| std::mem::take(&mut side.node.told))
    }
}

#[test]
fn a_dialled_node_is_a_client_at_both_ends_and_pings_are_answered_in_their_order() {
    let mut pair = Pair::open();
    let [a, b] = pair.ids;
    pair.from.call(pair.now, |_, _, out| {
        out.send(a, b"there");
        out.ping(a);
    });
    pair.to.call(pair.now, |_, _, out| out.send(b, b"back"));
    (0..4).for_each(|_| pair.turn());
    let [from, to] = pair.told();
    assert_eq!(from, [Told::Received(b"back".to_vec()), Told::Answered]);
    assert_eq!(to, [Told::Received(b"there".to_vec())]);
    pair.to.call(pair.now, |_, _, out| out.close(b));
    pair.from.call(pair.now, |_, _, out| out.close(a));
    pair.turn();
    assert_eq!(pair.told(), [vec![Told::Closed], vec![Told::Closed]]);
}

#[test]
fn much_is_sent_as_room_allows() {
    let mut pair = Pair::open();
    let [a, _] = pair.ids;
    let count = 100;
    pair.from.call(pair.now, |node, _, out| {
        node.left = count * MESSAGE_BYTES;
        out.when_room(a);
    });
    let mut most = 0;
    while pair.from.deadline(pair.now) == Some(pair.now) || pair.to.node.told.len() < count {
        pair.from.turn(pair.now);
        most = most.max(pair.from.server_connection(a).unwrap().output.len());
        pair.turn();
    }
    assert!(most < ROOM_BYTES + 2 * MESSAGE_BYTES, "{most}");
    assert_eq!(pair.told()[1], vec![Told::Received(vec![7; MESSAGE_BYTES]); count]);
}

#[test]
fn an_idle_connection_stays_and_a_silent_one_is_closed() {
    let mut pair = Pair::open();
    for _ in 0..100 {
        pair.now = pair.from.deadline(pair.now).unwrap();
        (0..3).for_each(|_| pair.turn());
    }
    assert_eq!(pair.told(), [vec![], vec![]]);
    let [_, b] = pair.ids;
    // Its host is gone: nothing of what is sent arrives.
    pair.to.remove(b, pair.now);
    let gone = pair.now;
    while pair.from.node.told.is_empty() {
        pair.now = pair.from.deadline(pair.now).unwrap();
        (0..3).for_each(|_| pair.turn());
    }
    let silence = pair.now - gone;
    let most = Deadline::Silence.duration();
    assert!((most..2 * most).contains(&silence), "{silence:?}");
    assert_eq!(pair.told()[0], [Told::Closed]);
}

#[test]
fn a_dial_that_fails_or_is_given_up_is_closed_once() {
    let mut from = Dispatcher::new(Recorder::default(), &token());
    let now = Instant::now();
    let mut ids = Vec::new();
    let later = now + Duration::from_secs(1);
    from.call(now, |_, now, out| {
        ids = [now, now, later].map(|at| out.dial("host:1", at)).to_vec();
        out.close(ids[2]);
    });
    assert_eq!(from.next_dial(now).unwrap().0, ids[0]);
    from.not_dialled(ids[0], Error::new(Kind::Unreachable, "cannot be reached"));
    assert_eq!(from.next_dial(now).unwrap().0, ids[1]);
    from.call(now, |_, _, out| out.close(ids[1]));
    assert!(!from.dialled(ids[1]), "nobody waits for it any more");
    assert_eq!(from.deadline(now), Some(now));
    from.turn(now);
    assert_eq!(from.node.told, vec![Told::Closed; 3]);
    assert_eq!((from.next_dial(later), from.deadline(now)), (None, None));
    let waiting = from.outbox().dial("host:1", later);
    from.call(now, |_, _, _| {});
    assert_eq!((from.next_dial(now), from.deadline(now)), (None, Some(later)));
    assert_eq!(from.next_dial(later).unwrap().0, waiting);
}
