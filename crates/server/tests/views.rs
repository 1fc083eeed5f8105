//! Single messages during changes of views, without a network.

use std::sync::Arc;
use std::time::Duration;

use thinwire_member::Id;
use thinwire_server::{
    Action, Clocks, Consistency, Entry, Event, Message, Options, Pace, Push, PushName, Reason,
    Request, Shard, Slowest, View, Workers, Write,
};

const NOW: Duration = Duration::ZERO;
const WORKER: Id = Id(9);

fn view(number: u64, replicas: &[u64], learners: &[u64]) -> View {
    let ids = |ids: &[u64]| ids.iter().copied().map(Id).collect();
    View { number, replicas: ids(replicas), learners: ids(learners) }
}

fn shard(id: u64) -> Shard {
    Shard::new(Id(id), Options::new(Consistency::Async))
}

fn hears(shard: &mut Shard, from: u64, message: Message) -> Vec<Action> {
    shard.on(Event::Message { from: Id(from), message }, NOW)
}

fn push(number: u64) -> Event {
    Event::Push(Push { client: WORKER, number, step: number, parts: Vec::new() })
}

fn entries(view: u64) -> Vec<Entry> {
    let entry = |write| Entry { view, write: Arc::new(write) };
    let pushes = |number| {
        let name = PushName { client: WORKER, number, step: number };
        Write::Update { pushes: vec![name], parts: Vec::new() }
    };
    let workers = Write::Workers(Workers { version: 1, ids: vec![WORKER] });
    vec![entry(workers), entry(pushes(1)), entry(pushes(2))]
}

fn forward(view: u64, entries: Vec<Entry>, committed: u64) -> Message {
    Message::Forward { view, after: 0, entries, committed }
}

fn have(view: u64, last: u64) -> Message {
    Message::Have { view, last: Some(last), committed: 0 }
}

/// Returns a backup with three entries, which knows that one is committed.
fn backup(id: u64, replicas: &[u64]) -> Shard {
    let mut shard = shard(id);
    shard.on(Event::View(view(7, replicas, &[])), NOW);
    let actions = hears(&mut shard, 1, forward(7, entries(7), 1));
    assert_eq!(actions.len(), 2, "one write is applied, and the primary has an answer");
    shard
}

fn is_ready(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Ready { .. }))
}

#[test]
fn a_learner_is_ready_when_it_has_all_that_an_earlier_primary_may_have_acknowledged() {
    let mut shard = backup(2, &[1, 2, 3]);
    // Server 3 is silent, so entries 2 and 3 cannot be committed.
    shard.on(Event::View(view(8, &[2, 3], &[4])), NOW);
    assert_eq!(shard.committed(), Some(1));
    assert!(!is_ready(&hears(&mut shard, 4, have(8, 1))));
    assert!(!is_ready(&hears(&mut shard, 4, have(8, 2))));
    assert!(is_ready(&hears(&mut shard, 4, have(8, 3))));
}

fn acknowledged(number: u64) -> Action {
    Action::Acknowledge { client: WORKER, number, pace: Pace { step: number, pushing: 1 } }
}

#[test]
fn commits_wait_for_a_learner_that_was_reported() {
    let mut shard = backup(2, &[1, 2]);
    shard.on(Event::View(view(8, &[2], &[4])), NOW);
    assert_eq!(shard.committed(), Some(3), "a primary alone commits its log");
    assert!(is_ready(&hears(&mut shard, 4, have(8, 3))));
    let acknowledged = acknowledged(3);
    assert!(!shard.on(push(3), NOW).contains(&acknowledged));
    assert!(hears(&mut shard, 4, have(8, 4)).contains(&acknowledged));
}

#[test]
fn a_push_that_is_sent_again_to_the_next_primary_is_not_logged_again() {
    let mut shard = backup(2, &[1, 2, 3]);
    shard.on(Event::View(view(8, &[2, 3], &[])), NOW);
    assert_eq!(shard.on(push(2), NOW), [], "it is in the log, and not committed");
    let actions = hears(&mut shard, 3, have(8, 3));
    let acknowledged = acknowledged(2);
    assert_eq!(actions.iter().filter(|action| **action == acknowledged).count(), 1);
    assert_eq!(shard.on(push(2), NOW), [acknowledged]);
    assert_eq!(shard.committed(), Some(3));
}

#[test]
fn a_primary_that_was_left_out_is_refused_and_refuses() {
    let mut old = shard(1);
    old.on(Event::View(view(7, &[1, 2], &[])), NOW);
    old.on(Event::Workers(Workers { version: 1, ids: vec![WORKER] }), NOW);
    let mut new = backup(2, &[1, 2]);
    new.on(Event::View(view(8, &[2], &[])), NOW);
    let refusal = Message::Superseded { view: 8 };
    let actions = hears(&mut new, 1, forward(7, entries(7), 3));
    assert_eq!(actions, [Action::Forward { to: Id(1), message: refusal.clone() }]);
    hears(&mut old, 2, refusal);
    let reason = Reason::Elsewhere { primary: None };
    let refused = Action::Refuse { client: WORKER, request: Request::Push(1), reason };
    assert_eq!(old.on(push(1), NOW), [refused]);
}

#[test]
fn a_snapshot_leaves_what_may_be_acknowledged() {
    let mut shard = backup(3, &[1, 2, 3]);
    shard.on(Event::View(view(8, &[2, 3], &[])), NOW);
    let snapshot = Message::Snapshot { view: 8, last: 2, clocks: Clocks::default() };
    assert_eq!(hears(&mut shard, 2, snapshot)[0], Action::Load);
    // The primary dies before it sends the third entry, which its successor has nevertheless.
    shard.on(Event::View(view(9, &[3], &[])), NOW);
    assert_eq!(shard.committed(), Some(3));
}

#[test]
fn entries_of_another_view_replace_what_was_never_acknowledged() {
    let mut shard = backup(3, &[1, 2, 3]);
    shard.on(Event::View(view(8, &[2, 3], &[])), NOW);
    let mut others = entries(7);
    others.truncate(2);
    others[1].view = 8;
    hears(&mut shard, 2, forward(8, others, 1));
    shard.on(Event::View(view(9, &[3], &[])), NOW);
    assert_eq!(shard.committed(), Some(2), "the third entry followed one that was replaced");
}

#[test]
fn a_worker_that_waits_is_told_for_whom() {
    let (other, second) = (Id(8), Duration::from_secs(1));
    let mut shard = Shard::new(Id(1), Options::new(Consistency::Sync));
    shard.on(Event::View(view(7, &[1], &[])), NOW);
    shard.on(Event::Workers(Workers { version: 1, ids: vec![other, WORKER] }), NOW);
    assert_eq!(shard.on(push(1), NOW), []);
    shard.on(Event::Tick, second / 2);
    assert_eq!(shard.deadline(), second);
    let slowest = Slowest { worker: other, step: 0 };
    let told = Action::Delay { client: WORKER, request: Request::Push(1), slowest };
    assert_eq!(shard.on(Event::Tick, second), std::slice::from_ref(&told));
    assert_eq!(shard.on(Event::Tick, 3 * second / 2), [], "once a second");
    assert_eq!(shard.on(Event::Tick, 2 * second), [told]);
    let push = Push { client: other, number: 1, step: 1, parts: Vec::new() };
    assert_eq!(shard.on(Event::Push(push), 2 * second).len(), 3, "both are acknowledged");
    assert_eq!(shard.on(Event::Tick, 4 * second), []);
    assert_eq!(shard.deadline(), Duration::MAX, "nobody waits");
}
