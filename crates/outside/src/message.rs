//! Law of messages between the processes of an elastic job and their coordinator.

use std::time::Duration;

use thinwire_member::{
    CoordinatorMode, Id, MESSAGE_BYTES_MAX, Member, MemberEvent, Message, Options, Roster,
    RosterEvent,
};

const PROCESS: Id = Id(1);
const COORDINATOR: Id = Id(2);

/// Checks that any bytes are either refused with an error of one line or read as a message. A message
/// stays the same if it is written and read again, and a process and a coordinator take it in.
pub fn message(bytes: &[u8]) {
    let message = match Message::parse(bytes) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().contains('\n')),
    };
    assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    assert_eq!(Message::parse(&message.to_bytes()), Ok(message.clone()));
    let options = Options::new(CoordinatorMode::Unsaved, 1, 4);
    if let Message::Report(report) = &message {
        let mut roster = Roster::found(COORDINATOR, options);
        let event = RosterEvent::Report { id: PROCESS, report: report.clone() };
        roster.on(event, Duration::ZERO);
        (0..8).for_each(|second| drop(roster.on(RosterEvent::Tick, Duration::from_secs(second))));
    }
    let mut member = Member::new(PROCESS, options, 0);
    member.on(MemberEvent::Coordinator(COORDINATOR), Duration::ZERO);
    member.on(MemberEvent::Message { from: COORDINATOR, message }, Duration::ZERO);
    (0..8).for_each(|second| drop(member.on(MemberEvent::Tick, Duration::from_secs(second))));
}
