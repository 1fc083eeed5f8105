//! Rules of promises, message by message: whom a member obeys, and what counts for a coordinator.

use std::time::Duration;

use thinwire_member::{
    CoordinatorMode, Epoch, Id, Known, Manner, Member, MemberAction, MemberEvent, Message,
    Occasion, Options, Promise, Report, Roster, RosterAction, RosterEvent, Standing, State, Wait,
};

const NOW: Duration = Duration::from_secs(10);
const ME: Id = Id(1);
const OLD: Id = Id(100);
const NEW: Id = Id(200);

fn options() -> Options {
    Options::new(CoordinatorMode::Unsaved, 1, 8)
}

fn epoch(number: u32, members: &[u64]) -> Epoch {
    let members = members.iter().copied().map(Id).collect();
    Epoch { number, coordinator: OLD, members, state_sources: 0, done: 0, target: 8 }
}

fn tell(member: &mut Member, from: Id, message: Message) -> Vec<MemberAction> {
    member.on(MemberEvent::Message { from, message }, NOW)
}

fn propose(epoch: Epoch, last: u32) -> Message {
    Message::Propose { epoch, last }
}

/// A member of epoch 1 that has trained and stopped, with promise 2 to the old coordinator.
fn halted() -> Member {
    let mut member = Member::new(ME, options(), 0);
    tell(&mut member, OLD, propose(epoch(1, &[1, 2, 3]), 0));
    let started = tell(&mut member, OLD, Message::Start(epoch(1, &[1, 2, 3])));
    assert!(started.iter().any(|action| matches!(action, MemberAction::Run(_))), "{started:?}");
    member.on(MemberEvent::Synced { done: 0 }, NOW);
    member.on(MemberEvent::Applied { done: 1 }, NOW);
    tell(&mut member, OLD, Message::Stop { number: 2, last: 1, manner: Manner::Abort });
    member.on(MemberEvent::Halted, NOW);
    assert_eq!(member.promised(), Promise { number: 2, to: OLD });
    member
}

#[test]
fn a_hail_is_obeyed_only_with_a_larger_number_and_without_a_coordinator() {
    let mut member = halted();
    tell(&mut member, NEW, Message::Prepare { number: 9 });
    assert_eq!(member.promised().to, OLD, "it has just heard of its coordinator");
    member.on(MemberEvent::Lost(OLD), NOW);
    for number in [0, 1, 2] {
        tell(&mut member, NEW, Message::Prepare { number });
        assert_eq!(member.promised(), Promise { number: 2, to: OLD });
    }
    tell(&mut member, NEW, Message::Prepare { number: 3 });
    assert_eq!(member.promised(), Promise { number: 3, to: NEW });
}

#[test]
fn a_member_obeys_nobody_else_than_whom_it_promised_to() {
    let mut member = halted();
    let stranger = Epoch { coordinator: NEW, ..epoch(9, &[1, 2]) };
    tell(&mut member, NEW, propose(stranger, 1));
    assert_eq!(member.accepted(), None);
    tell(&mut member, NEW, Message::Stop { number: 9, last: 1, manner: Manner::Abort });
    assert_eq!(member.promised(), Promise { number: 2, to: OLD });
    tell(&mut member, OLD, propose(epoch(2, &[1, 2]), 1));
    assert_eq!(member.accepted().map(|epoch| epoch.number), Some(2));
}

#[test]
fn an_epoch_does_not_start_after_a_promise_to_another_coordinator() {
    let mut member = halted();
    tell(&mut member, OLD, propose(epoch(2, &[1, 2]), 1));
    member.on(MemberEvent::Lost(OLD), NOW);
    tell(&mut member, NEW, Message::Prepare { number: 3 });
    let actions = tell(&mut member, OLD, Message::Start(epoch(2, &[1, 2])));
    assert!(!actions.iter().any(|action| matches!(action, MemberAction::Run(_))), "{actions:?}");
    assert_eq!((member.standing(), member.epoch().unwrap().number), (Standing::Halted, 1));
}

#[test]
fn a_member_vouches_for_an_epoch_that_started_and_ended_without_it() {
    let mut member = halted();
    tell(&mut member, OLD, propose(epoch(2, &[1, 2]), 1));
    tell(&mut member, OLD, Message::Stop { number: 3, last: 2, manner: Manner::Abort });
    assert_eq!(member.epoch().unwrap().number, 2);
    tell(&mut member, OLD, propose(epoch(3, &[1, 2, 4]), 2));
    assert_eq!((member.epoch().unwrap().number, member.accepted().unwrap().number), (2, 3));
}

#[test]
fn a_late_proposal_of_an_epoch_that_runs_changes_nothing() {
    let mut member = halted();
    tell(&mut member, OLD, propose(epoch(2, &[1, 2]), 1));
    tell(&mut member, OLD, Message::Start(epoch(2, &[1, 2])));
    let actions = tell(&mut member, OLD, propose(epoch(2, &[1, 2]), 1));
    assert!(!actions.contains(&MemberAction::Abort), "{actions:?}");
    assert_eq!((member.standing(), member.accepted()), (Standing::Running, None));
}

#[test]
fn a_fenced_process_has_no_state_and_no_step_of_it_counts() {
    let mut member = halted();
    let actions = tell(&mut member, OLD, Message::Start(epoch(2, &[2, 3])));
    assert!(actions.contains(&MemberAction::Fenced { number: 2 }), "{actions:?}");
    member.on(MemberEvent::Applied { done: 2 }, NOW);
    assert_eq!((member.standing(), member.state()), (Standing::Newcomer, None));
}

/// A report of a member of epoch 1 that has promised to the new coordinator.
fn report(heartbeat: u64, known: Option<Known>) -> Report {
    Report {
        heartbeat,
        occasion: Occasion::Heartbeat,
        standing: Standing::Running,
        promised: Promise { number: 2, to: NEW },
        epoch: 1,
        accepted: 0,
        state: Some(State { epoch: 1, done: 7 }),
        fingerprint: 0,
        lost: Vec::new(),
        leaving: false,
        known: known.map(Box::new),
    }
}

#[test]
fn a_promise_counts_only_with_the_epochs_that_its_giver_knows() {
    let known = Known { epoch: Some(epoch(1, &[1, 2, 3])), accepted: None };
    let mut roster = Roster::adopt(NEW, options(), NOW);
    let mut on = |id: u64, report| roster.on(RosterEvent::Report { id: Id(id), report }, NOW);
    on(1, report(1, Some(known.clone())));
    let answer = on(2, report(1, None));
    let prepare = RosterAction::Send { to: Id(2), message: Message::Prepare { number: 1 } };
    assert!(answer.contains(&prepare), "{answer:?}");
    assert_eq!(roster.waiting(), Some(Wait::Quorum { have: 1, need: 2 }));
    roster.on(RosterEvent::Report { id: Id(2), report: report(2, Some(known)) }, NOW);
    assert_eq!(roster.waiting(), None);
}
