//! Laws of messages as bytes: every message is read back, and no other bytes mean the same.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use thinwire_member::{
    Corrupt, Epoch, Id, Known, MESSAGE_BYTES_MAX, Manner, Message, Occasion, Promise, Reason,
    Report, Standing, State, Wait,
};

fn id() -> impl Strategy<Value = Id> {
    any::<u64>().prop_map(Id)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    let members = prop::collection::btree_set(any::<u64>(), 1..6);
    (1..=1_u32 << 31, id(), members, 0..6_usize, any::<u64>(), any::<u32>()).prop_map(
        |(number, coordinator, members, holders, done, target)| {
            let members: Vec<Id> = members.into_iter().rev().map(Id).collect();
            let holders = holders.min(members.len()) as u32;
            let done = if holders > 0 { done } else { 0 };
            Epoch { number, coordinator, members, holders, done, target }
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let occasion = prop_oneof![Just(Occasion::Beat), Just(Occasion::News)];
    let standing =
        prop_oneof![Just(Standing::Newcomer), Just(Standing::Running), Just(Standing::Halted)];
    let state = option::of(any::<(u32, u64)>().prop_map(|(epoch, done)| State { epoch, done }));
    let promised = (any::<u32>(), id()).prop_map(|(number, to)| Promise { number, to });
    let known = (option::of(epoch()), option::of(epoch()))
        .prop_map(|(epoch, accepted)| Box::new(Known { epoch, accepted }));
    let known = option::of(known);
    let numbers = any::<(u64, u32, u32, u64)>();
    let rest = (vec(id(), 0..5), any::<bool>(), known);
    (occasion, standing, promised, state, numbers, rest).prop_map(
        |(occasion, standing, promised, state, numbers, (lost, leaving, known))| {
            let (beat, epoch, accepted, fingerprint) = numbers;
            Report {
                beat,
                occasion,
                standing,
                promised,
                epoch,
                accepted,
                state,
                fingerprint,
                lost,
                leaving,
                known,
            }
        },
    )
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(have, min)| Wait::Members { have, min }),
        any::<(u32, u32)>().prop_map(|(have, need)| Wait::Quorum { have, need }),
        any::<u64>().prop_map(|done| Wait::Holder { done }),
        any::<u32>().prop_map(|number| Wait::Proposed { number }),
        Just(Wait::Unknown),
    ]
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        any::<u32>().prop_map(|target| Reason::Full { target }),
        any::<(u64, u64)>().prop_map(|(found, expected)| Reason::Fingerprint { found, expected }),
        id().prop_map(|member| Reason::Unreachable { member }),
        any::<(u32, u32, u32)>().prop_map(|(found, min, max)| Reason::Size { found, min, max }),
        wait().prop_map(|wait| Reason::Waiting { wait }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let manner = prop_oneof![
        Just(Manner::Abort),
        vec(id(), 0..5).prop_map(|leavers| Manner::Finish { leavers }),
    ];
    prop_oneof![
        report().prop_map(Message::Report),
        any::<u32>().prop_map(|number| Message::Hail { number }),
        (any::<u32>(), any::<u32>(), manner).prop_map(|(number, last, manner)| Message::Stop {
            number,
            last,
            manner
        }),
        (epoch(), any::<u32>()).prop_map(|(epoch, last)| Message::Propose { epoch, last }),
        epoch().prop_map(Message::Start),
        Just(Message::Heard),
        reason().prop_map(Message::Refuse),
        any::<u32>().prop_map(Message::Resize),
        Just(Message::Bye),
    ]
}

proptest! {
    #[test]
    fn every_message_is_read_back(message in message()) {
        let bytes = message.to_bytes();
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Message::parse(&bytes), Ok(message));
    }

    #[test]
    fn any_change_of_a_message_is_refused_or_writes_itself_back(
        message in message(), value: u8
    ) {
        let sent = message.to_bytes();
        let changed = (0..sent.len()).map(|place| {
            let mut bytes = sent.clone();
            bytes[place] = value;
            bytes
        });
        let cut = (0..sent.len()).map(|length| sent[..length].to_vec());
        for bytes in changed.chain(cut) {
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_write_themselves_back(bytes in vec(0..16_u8, 0..80)) {
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.to_bytes(), bytes);
        }
    }
}

#[test]
fn the_longest_message_is_within_the_bound_and_a_longer_one_is_refused() {
    let members: Vec<Id> = (0..4096).map(Id).collect();
    let epoch = Epoch {
        number: 1,
        coordinator: Id(9),
        members: members.clone(),
        holders: 1,
        done: 1,
        target: 1,
    };
    let known = Known { epoch: Some(epoch.clone()), accepted: Some(epoch) };
    let report = Report {
        beat: 1,
        occasion: Occasion::News,
        standing: Standing::Halted,
        promised: Promise::NONE,
        epoch: 1,
        accepted: 1,
        state: Some(State { epoch: 1, done: 1 }),
        fingerprint: 0,
        lost: members,
        leaving: true,
        known: Some(Box::new(known)),
    };
    let bytes = Message::Report(report.clone()).to_bytes();
    assert_eq!(bytes.len(), MESSAGE_BYTES_MAX);
    assert_eq!(Message::parse(&bytes), Ok(Message::Report(report)));
    let found = MESSAGE_BYTES_MAX + 1;
    assert_eq!(
        Message::parse(&vec![0; found]),
        Err(Corrupt::Length { found, max: MESSAGE_BYTES_MAX })
    );
}

#[test]
fn refusals_name_both_values() {
    let table: [(&[u8], &str); 5] = [
        (&[], "0 bytes are left, expected a field of 1"),
        (&[10], "message kind 10, expected at most 9"),
        (&[5, 0], "1 bytes too many, expected none"),
        (&[2, 1, 0, 0, 0, 0, 0, 0, 0, 7], "manner 7, expected at most 1"),
        (
            &[2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 16, 0, 0],
            "4097 members in 0 bytes, expected at most 4096 of 8 bytes each",
        ),
    ];
    for (bytes, said) in table {
        assert_eq!(Message::parse(bytes).unwrap_err().to_string(), said);
    }
}
