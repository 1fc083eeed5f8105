//! Laws of the serialisation of all messages.

use std::sync::Arc;

use proptest::prelude::*;

use serde::Serialize;
use thinwire_link::Kind;
use thinwire_member::Id;
use thinwire_rows::Format;
use thinwire_wire::{TEXT_BYTES_MAX, encode};

use super::rows::Rows;
use super::*;
use crate::clocks::{Clocks, NUMBER_MAX, Pace};
use crate::message::Message;
use crate::reason::{Reason, Request, Slowest};
use crate::values::Values;
use crate::write::{Entry, Part, Pull, Push, PushName, Workers, Write};

fn rows() -> impl Strategy<Value = Vec<u64>> {
    let run = (0_u64..99, 0_u64..9).prop_map(|(first, count)| (first..first + count).collect());
    prop_oneof![run, prop::collection::vec(any::<u64>(), 0..5), Just(vec![u64::MAX - 1, u64::MAX])]
}

fn part() -> impl Strategy<Value = Part> {
    let plain = prop::collection::vec(-9_f32..9.0, 0..12).prop_map(Values::F32);
    let bytes = || prop::collection::vec(any::<u8>(), 0..24);
    let halves = bytes().prop_map(|mut bytes| {
        bytes.truncate(bytes.len() & !1);
        Values::F16(bytes)
    });
    let gradient = prop_oneof![plain, halves, bytes().prop_map(Values::Int8)];
    (any::<u32>(), rows(), gradient).prop_map(|(table, rows, gradient)| Part {
        table,
        rows,
        gradient,
    })
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    prop::collection::vec(part(), 0..4)
}

fn num() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..9, Just(NUMBER_MAX)]
}

fn name() -> impl Strategy<Value = PushName> {
    (some_id(), num(), num()).prop_map(|(client, number, step)| PushName { client, number, step })
}

fn some_id() -> impl Strategy<Value = Id> {
    any::<u64>().prop_map(Id)
}

fn request() -> impl Strategy<Value = FromClient> {
    let hello = (some_id(), any::<u64>())
        .prop_map(|(client, definition)| FromClient::Hello { client, definition });
    let push = (any::<u32>(), name(), parts()).prop_map(
        |(shard, PushName { client, number, step }, parts)| FromClient::Push {
            shard,
            push: Push { client, number, step, parts },
        },
    );
    let tables = prop::collection::vec((any::<u32>(), rows()), 0..4);
    let pull = (any::<u32>(), some_id(), any::<u64>(), num(), tables).prop_map(
        |(shard, client, request, after, rows)| FromClient::Pull {
            shard,
            pull: Pull { client, request, after, rows },
        },
    );
    prop_oneof![hello, push, pull]
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        prop::option::of(some_id()).prop_map(|primary| Reason::Elsewhere { primary }),
        Just(Reason::Unknown),
        num().prop_map(|expected| Reason::Early { expected }),
        any::<usize>().prop_map(|waiting| Reason::Busy { waiting }),
    ]
}

fn pace() -> impl Strategy<Value = Pace> {
    (num(), any::<u32>()).prop_map(|(step, pushing)| Pace { step, pushing })
}

fn reply() -> impl Strategy<Value = FromServer> {
    let name =
        || prop_oneof![any::<u64>().prop_map(Request::Push), any::<u64>().prop_map(Request::Pull)];
    let values = prop::collection::vec(any::<u8>(), 0..36);
    prop_oneof![
        some_id().prop_map(|server| FromServer::Welcome { server }),
        (any::<u32>(), num(), pace()).prop_map(|(shard, number, pace)| FromServer::Acknowledge {
            shard,
            number,
            pace
        }),
        (any::<u32>(), any::<u64>(), pace(), values).prop_map(|(shard, request, pace, values)| {
            FromServer::Answer { shard, request, pace, values }
        }),
        (any::<u32>(), name(), some_id(), num()).prop_map(|(shard, request, worker, step)| {
            FromServer::Delayed { shard, request, slowest: Slowest { worker, step } }
        }),
        (any::<u32>(), name(), reason()).prop_map(|(shard, request, reason)| FromServer::Refused {
            shard,
            request,
            reason
        }),
        (any::<u32>(), name(), ".{0,9}")
            .prop_map(|(shard, request, text)| FromServer::SchemaError { shard, request, text }),
        ".{0,9}".prop_map(|text| FromServer::Stranger { text }),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let update = (prop::collection::vec(name(), 0..4), parts())
        .prop_map(|(pushes, parts)| Write::Update { pushes, parts });
    let workers = (any::<u64>(), prop::collection::vec(some_id(), 0..4))
        .prop_map(|(version, ids)| Write::Workers(Workers { version, ids }));
    prop_oneof![update, workers]
}

fn clocks() -> impl Strategy<Value = Clocks> {
    prop::collection::vec((0..5_u64, prop::collection::btree_set(0..9_u64, 0..4)), 0..4).prop_map(
        |changes| {
            let mut clocks = Clocks::default();
            for (version, (number, ids)) in (1..).zip(changes) {
                let ids: Vec<Id> = ids.into_iter().map(Id).collect();
                let name = |id: &Id| PushName { client: *id, number, step: number };
                let pushes = ids.iter().map(name).collect();
                clocks.apply(&Write::Workers(Workers { version, ids }));
                clocks.apply(&Write::Update { pushes, parts: Vec::new() });
            }
            clocks
        },
    )
}

fn peer() -> impl Strategy<Value = Peer> {
    let entry =
        (any::<u64>(), write()).prop_map(|(view, write)| Entry { view, write: Arc::new(write) });
    let view = any::<u64>;
    let message = prop_oneof![
        (view(), num(), prop::collection::vec(entry, 0..4), num()).prop_map(
            |(view, after, entries, committed)| Message::Forward {
                view,
                after,
                entries,
                committed
            }
        ),
        (view(), prop::option::of(num()), num())
            .prop_map(|(view, last, committed)| Message::Have { view, last, committed }),
        (view(), num(), clocks()).prop_map(|(view, last, clocks)| Message::Snapshot {
            view,
            last,
            clocks
        }),
        view().prop_map(|view| Message::Superseded { view }),
    ];
    let message = (any::<u32>(), message, prop::collection::vec(any::<u8>(), 0..9)).prop_map(
        |(shard, message, tables)| {
            let has_tables = matches!(message, Message::Snapshot { .. });
            let tables = if has_tables { tables } else { Vec::new() };
            Peer::Message { shard, message, tables }
        },
    );
    let hello = (some_id(), any::<u64>())
        .prop_map(|(server, definition)| Peer::Hello { server, definition });
    prop_oneof![hello, message]
}

/// Checks that bytes are refused or parse to a message that survives writing and reading. Messages are
/// compared as bytes, because values may be NaN.
fn written_back(bytes: &[u8]) {
    match Received::parse(bytes) {
        Ok(Received::Client(message)) => {
            let bytes = message.to_bytes();
            assert_eq!(FromClient::parse(&bytes).unwrap().to_bytes(), bytes);
        }
        Ok(Received::Peer(message)) => {
            let bytes = message.to_bytes();
            assert_eq!(Peer::parse(&bytes).unwrap().to_bytes(), bytes);
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
    if let Ok(message) = FromServer::parse(bytes) {
        let bytes = message.to_bytes();
        assert_eq!(FromServer::parse(&bytes).unwrap().to_bytes(), bytes);
    }
}

/// Checks all prefixes of a message, and the message with each of its bytes changed.
fn neighbours(mut bytes: Vec<u8>) {
    for at in 0..bytes.len() {
        written_back(&bytes[..at]);
        for change in [1, 2, 0x80] {
            bytes[at] ^= change;
            written_back(&bytes);
            bytes[at] ^= change;
        }
    }
}

proptest! {
    #[test]
    fn requests_are_read_back(message in request()) {
        let bytes = message.to_bytes();
        prop_assert_eq!(Received::parse(&bytes).unwrap(), Received::Client(message));
        neighbours(bytes);
    }

    #[test]
    fn replies_are_read_back(message in reply()) {
        let bytes = message.to_bytes();
        prop_assert_eq!(FromServer::parse(&bytes).unwrap(), message);
        neighbours(bytes);
    }

    #[test]
    fn messages_of_peers_are_read_back(message in peer()) {
        let bytes = message.to_bytes();
        prop_assert_eq!(Received::parse(&bytes).unwrap(), Received::Peer(message));
        neighbours(bytes);
    }

    #[test]
    fn any_bytes_are_refused_or_a_message(
        kind in 0..4_u8, rest in prop::collection::vec(0..4_u8, 0..80)
    ) {
        written_back(&[&[kind], &rest[..]].concat());
    }

    #[test]
    fn a_message_has_one_sequence_of_frames(more in 0..3_usize, tail in 0..3_usize, cut in 0..5_usize) {
        let length = (more * FRAGMENT_BYTES + tail).max(1);
        let message: Vec<u8> = (0..length).map(|at| 1 + (at % 251) as u8).collect();
        let sent: Vec<Vec<u8>> = frames(&message).map(|frame| frame.into_owned()).collect();
        let mut fragments = Fragments::default();
        let mut arrived = Vec::new();
        for frame in &sent {
            prop_assert!(arrived.is_empty() && frame.len() <= 2 + FRAGMENT_BYTES);
            let message = fragments.take(frame, length).unwrap();
            arrived.extend(message.map(|message| message.into_owned()));
        }
        prop_assert_eq!(arrived, [message]);
        // Every other sequence of frames is refused.
        if sent.len() > 1 {
            let mut fragments = Fragments::default();
            let results = sent.iter().skip(1).map(|frame| fragments.take(frame, length).map(|_| ()));
            prop_assert!(sent.len() > 2 || results.last().unwrap().is_err());
            let mut fragments = Fragments::default();
            let short = &sent[0][..sent[0].len() - 1 - cut];
            prop_assert!(fragments.take(short, length).is_err());
            prop_assert!(fragments.take(&sent[0], length).unwrap().is_none());
            prop_assert!(fragments.take(b"between", length).is_err());
            let last = fragments.take(&sent[1], FRAGMENT_BYTES).unwrap_err();
            prop_assert_eq!(last.kind, Kind::Limit);
        }
    }
}

/// Returns a message with bytes that no client writes.
fn forged<T: Serialize>(variant: u8, fields: T) -> Result<FromClient, Error> {
    FromClient::parse(&encode(&(CLIENT, variant, 0_u8, fields)))
}

#[test]
fn few_bytes_allocate_little() {
    let run = |length: usize| Rows::Run { first: 4, length: length as u32 };
    let pull = |length| forged(2, (Id(1), 1_u64, 0_u64, vec![(0_u32, run(length))]));
    assert!(pull(PULL_ROWS_MAX).is_ok());
    assert!(pull(PULL_ROWS_MAX + 1).is_err());
    let more = vec![(0_u32, run(PULL_ROWS_MAX - 1)), (1, run(2))];
    assert!(forged(2, (Id(1), 1_u64, 0_u64, more)).is_err(), "more rows in all tables");
    let push = |rows: usize, values: Vec<u8>| {
        forged(1, (Id(1), 1_u64, 1_u64, vec![(0_u32, Format::F32, run(rows), values)]))
    };
    assert!(push(2, vec![0; 8]).is_ok());
    assert!(push(3, vec![0; 8]).is_err(), "more rows than values");
    assert!(push(2, vec![0; 9]).is_err(), "a part of a value");
    let half = vec![(0_u32, Rows::List(&[0; 12]))];
    assert!(forged(2, (Id(1), 1_u64, 0_u64, half)).is_err(), "a part of a row");
}

#[test]
fn numbers_beyond_the_limit_are_refused() {
    let push = |number: u64, step: u64| forged(1, (Id(1), number, step, Vec::<u8>::new()));
    assert!(push(NUMBER_MAX, NUMBER_MAX).is_ok());
    assert!(push(NUMBER_MAX + 1, 1).is_err() && push(1, NUMBER_MAX + 1).is_err());
    let have = |last| Message::Have { view: 1, last, committed: 0 };
    let parse = |last| {
        Peer::parse(&Peer::Message { shard: 0, message: have(last), tables: Vec::new() }.to_bytes())
    };
    assert!(parse(None).is_ok() && parse(Some(NUMBER_MAX)).is_ok());
    let error = parse(Some(NUMBER_MAX + 1)).unwrap_err().to_string();
    assert!(error.ends_with("a field with a value that its type forbids"), "{error}");
}

#[test]
fn the_beginning_of_a_message_names_its_request() {
    let pull = Pull { client: Id(1), request: 9, after: 0, rows: vec![(0, vec![4, 7])] };
    let bytes = FromClient::Pull { shard: 3, pull }.to_bytes();
    assert_eq!(FromClient::request(&bytes[..bytes.len() - 9]).unwrap(), (3, Request::Pull(9)));
    let push = Push { client: Id(1), number: 8, step: 1, parts: Vec::new() };
    let bytes = FromClient::Push { shard: 2, push }.to_bytes();
    assert_eq!(FromClient::request(&bytes[..6]).unwrap(), (2, Request::Push(8)));
    assert!(FromClient::request(&bytes[..3]).is_err());
}

#[test]
fn long_texts_are_cut() {
    let bytes = FromServer::Stranger { text: "é".repeat(4000) }.to_bytes();
    assert!(bytes.len() <= 4 + TEXT_BYTES_MAX && FromServer::parse(&bytes).is_ok());
    let long = encode(&(SERVER, 6_u8, "x".repeat(TEXT_BYTES_MAX + 1)));
    let said = "sent a text of 4097 bytes, expected at most 4096";
    assert_eq!(FromServer::parse(&long).unwrap_err().to_string(), said);
}
