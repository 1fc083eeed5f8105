//! Limits of a service: bounds per client, and a server that loses its rows.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::table::MemoryLimit;

/// Returns a server in a view of both shards, with one worker.
fn within(limits: Limits, rows: u64, consistency: &str) -> Rig {
    let mut rig = Rig::new(ONE, &definition(rows, consistency));
    rig.service.limits = limits;
    rig.define();
    rig.enter(&alone());
    rig
}

fn memory(bytes_max: u64, folder: PathBuf) -> Limits {
    Limits { memory: Some(MemoryLimit { bytes_max, folder }), ..Limits::default() }
}

#[test]
fn a_server_within_a_limit_of_memory_answers_alike() {
    let rows = 1 << 16;
    let limits = memory(700_000, std::env::temp_dir());
    let mut rigs = [Limits::default(), limits].map(|limits| within(limits, rows, "async"));
    let told = rigs.each_mut().map(|rig| {
        rig.hello(FIRST, WORKER);
        let all: Vec<u64> = (0..rows / 2).collect();
        for number in 1..4 {
            rig.send(FIRST, &push(number, &all)).unwrap();
        }
        rig.send(FIRST, &pull(WORKER, 1, 3, &all[100..2000])).unwrap();
        rig.told()
    });
    assert_eq!(told[0], told[1]);
    let stats = rigs.map(|rig| rig.service.stats());
    assert_eq!((stats[0].spilled, stats[0].rows), (0, stats[1].rows));
    assert!(stats[1].spilled > 0 && stats[1].bytes <= 700_000, "{:?}", stats[1]);
}

#[test]
fn a_server_that_cannot_keep_its_rows_serves_nobody() {
    let mut rig = Rig::new(ONE, &definition(8, "async"));
    rig.service.limits = memory(1 << 20, PathBuf::from("/dev/full/none"));
    rig.define();
    rig.hello(FIRST, WORKER);
    rig.told();
    rig.enter(&alone());
    assert_eq!(rig.out.take(), [Action::Close(FIRST)]);
    let failure = rig.service.reports.failure().unwrap();
    assert!(failure.starts_with("cannot make a file beyond the memory limit in "), "{failure}");
    assert!(rig.send(FIRST, &push(1, &[0])).is_err());
    assert_eq!((rig.service.deadline(), rig.out.take()), (None, Vec::new()));
}

#[test]
fn a_push_that_a_full_disk_does_not_take_is_not_acknowledged() {
    let mut rig = within(Limits::default(), 1 << 16, "async");
    rig.hello(FIRST, WORKER);
    rig.told();
    rig.service.replicas[0].tables_mut().fill_disk();
    let rows: Vec<u64> = (0..3000).collect();
    rig.send(FIRST, &push(1, &rows)).unwrap();
    assert_eq!(rig.out.take(), [Action::Close(FIRST)]);
    let failure = rig.service.reports.failure().unwrap();
    assert!(failure.starts_with("cannot write rows beyond the memory limit in "), "{failure}");
}

#[test]
fn a_limit_below_what_rows_always_take_is_refused_at_once() {
    let rig = within(memory(1000, std::env::temp_dir()), 1 << 16, "async");
    let failure = rig.service.reports.failure().unwrap();
    assert!(failure.starts_with("2 shards need "), "{failure}");
}

#[test]
fn a_client_beyond_its_rate_is_held_and_then_released() {
    let limits = Limits { client_rate: "8mbit".parse().ok(), ..Limits::default() };
    let mut rig = within(limits, 1 << 16, "async");
    rig.hello(FIRST, WORKER);
    rig.told();
    let rows: Vec<u64> = (0..1000).collect();
    // One message of 8 kB is below the burst; two together are above it.
    rig.send(FIRST, &push(1, &rows[..400])).unwrap();
    rig.told();
    rig.send(FIRST, &push(2, &rows)).unwrap();
    assert!(matches!(rig.out.take()[..], [Action::Hold(FIRST), Action::Send { .. }]));
    rig.tick();
    assert_eq!(rig.out.take(), [Action::Release(FIRST)]);
    // Answers count as well.
    rig.now += Duration::from_secs(1);
    rig.send(FIRST, &pull(WORKER, 1, 2, &rows)).unwrap();
    assert!(matches!(rig.out.take()[..], [Action::Send { .. }, Action::Hold(FIRST)]));
    let until = rig.service.sessions.deadline().unwrap() - rig.now;
    assert!((1..5).contains(&until.as_millis()), "{until:?}");
}

#[test]
fn messages_that_are_not_whole_take_bounded_memory() {
    let (rows, bound) = (1 << 20, 3 << 20);
    let mut rig = within(Limits::default(), rows, "async");
    rig.service.sessions.bound(bound);
    // Longer than the bound on all incomplete messages together.
    let all: Vec<u64> = (0..rows / 2).collect();
    let long = |client: u64| {
        let FromClient::Push { shard, mut push } = push(1, &all) else { unreachable!() };
        push.client = Id(client);
        FromClient::Push { shard, push }.to_bytes()
    };
    let (long, other) = (long(WORKER.0), long(8));
    assert!(long.len() > bound);
    rig.hello(FIRST, WORKER);
    rig.hello(SECOND, Id(8));
    rig.told();
    let mut first = frames(&long);
    rig.frame(FIRST, &first.next().unwrap()).unwrap();
    for frame in frames(&other) {
        rig.frame(SECOND, &frame).unwrap();
        assert!(rig.service.sessions.unfinished_bytes() <= bound);
    }
    let reason = crate::reason::Reason::Busy { waiting: 1 };
    let refused = FromServer::Refused { shard: 0, request: Request::Push(1), reason };
    assert_eq!(rig.told(), [(SECOND, refused)]);
    // Dropped messages no longer count, and a single message may exceed the bound.
    rig.send(SECOND, &pull(Id(8), 7, 0, &[0])).unwrap();
    assert!(matches!(&rig.told()[..], [(SECOND, FromServer::Answer { request: 7, .. })]));
    first.for_each(|frame| rig.frame(FIRST, &frame).unwrap());
    assert_eq!(rig.told(), [(FIRST, acknowledge(1))]);
    assert_eq!(rig.service.sessions.unfinished_bytes(), 0);
}

#[test]
fn pulls_of_one_client_that_wait_are_bounded_in_bytes() {
    let mut rig = within(Limits::default(), 1 << 20, "sync");
    rig.hello(FIRST, WORKER);
    rig.told();
    let rows: Vec<u64> = (0..1 << 17).collect();
    // Each pull has 1 MiB of row numbers and waits for a push of its client.
    for request in 1..=5 {
        rig.send(FIRST, &pull(WORKER, request, 1, &rows)).unwrap();
    }
    let reason = crate::reason::Reason::Busy { waiting: 4 };
    let refused = FromServer::Refused { shard: 0, request: Request::Pull(5), reason };
    assert_eq!(rig.told(), [(FIRST, refused)]);
    rig.send(FIRST, &push(1, &[0])).unwrap();
    assert_eq!(rig.told().len(), 5, "an acknowledgement and four answers");
}
