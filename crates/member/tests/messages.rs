//! Laws of messages as bytes: every message is read back, and what else is read is written as bytes that mean the
//! same.

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
        |(number, coordinator, members, state_sources, done, target)| {
            let members: Vec<Id> = members.into_iter().rev().map(Id).collect();
            let state_sources = state_sources.min(members.len()) as u32;
            let done = if state_sources > 0 { done } else { 0 };
            Epoch { number, coordinator, members, state_sources, done, target }
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let occasion = prop_oneof![Just(Occasion::Heartbeat), Just(Occasion::News)];
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
            let (heartbeat, epoch, accepted, fingerprint) = numbers;
            Report {
                heartbeat,
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
        any::<u64>().prop_map(|done| Wait::StateSource { done }),
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
        any::<u32>().prop_map(|number| Message::Prepare { number }),
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
    fn any_change_of_a_message_is_refused_or_another_message(
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
                prop_assert_eq!(Message::parse(&message.to_bytes()), Ok(message));
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_a_message(bytes in vec(0..16_u8, 0..80)) {
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(Message::parse(&message.to_bytes()), Ok(message));
        }
    }
}

fn epoch_of(members: u64) -> Epoch {
    let members: Vec<Id> = (0..members).map(|id| Id(u64::MAX - id)).collect();
    let (number, state_sources) = (1 << 31, members.len() as u32);
    let (coordinator, done, target) = (Id(u64::MAX), u64::MAX, u32::MAX);
    Epoch { number, coordinator, members, state_sources, done, target }
}

#[test]
fn the_longest_message_is_within_the_bound_and_a_longer_one_is_refused() {
    let epoch = epoch_of(4096);
    let lost = epoch.members.clone();
    let known = Known { epoch: Some(epoch.clone()), accepted: Some(epoch) };
    let report = Report {
        heartbeat: u64::MAX,
        occasion: Occasion::News,
        standing: Standing::Halted,
        promised: Promise { number: u32::MAX, to: Id(u64::MAX) },
        epoch: u32::MAX,
        accepted: u32::MAX,
        state: Some(State { epoch: u32::MAX, done: u64::MAX }),
        fingerprint: u64::MAX,
        lost,
        leaving: true,
        known: Some(Box::new(known)),
    };
    let bytes = Message::Report(report.clone()).to_bytes();
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{}", bytes.len());
    assert_eq!(Message::parse(&bytes), Ok(Message::Report(report)));
    let found = MESSAGE_BYTES_MAX + 1;
    assert_eq!(
        Message::parse(&vec![0; found]),
        Err(Corrupt::Length { found, max: MESSAGE_BYTES_MAX })
    );
}

#[test]
fn refusals_name_both_values() {
    let stop = |leavers| Message::Stop { number: 1, last: 0, manner: Manner::Finish { leavers } };
    let twice = Epoch { members: vec![Id(1); 2], ..epoch_of(2) };
    let late = Epoch { number: (1 << 31) + 1, ..epoch_of(2) };
    let table: [(&[u8], &str); 7] = [
        (&[], "0 bytes, expected more"),
        (&[10], "a field with a value that its type forbids"),
        (&[5, 0], "1 bytes too many, expected none"),
        (&stop(vec![Id(1); 4097]).to_bytes(), "4097 members, expected at most 4096"),
        (&Message::Start(epoch_of(4097)).to_bytes(), "4097 members, expected at most 4096"),
        (
            &Message::Propose { epoch: late, last: 0 }.to_bytes(),
            "epoch number 2147483649, expected at most 2147483648",
        ),
        (
            &Message::Start(twice).to_bytes(),
            "epoch 2147483648 is not sound: number 0, no members, a repeated one, more holders than \
             members, or steps without a holder",
        ),
    ];
    for (bytes, said) in table {
        assert_eq!(Message::parse(bytes).unwrap_err().to_string(), said);
    }
}
