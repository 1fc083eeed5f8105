//! Laws of clients under failures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use thinwire_job::elastic::{Coordinator, JobAddress};
use thinwire_server::{Client, Definition, Error, Gradient, Kind, Reader};
use thinwire_wire::Hint;

use crate::job::{
    LONG, ROWS, SHARDS, TOKEN, WIDTH, Worker, coordinator, definition, servers, workers,
};

fn check(coordinator: &Coordinator, expected: f32) {
    let mut reader = Reader::open(&coordinator.address(), TOKEN, LONG).unwrap();
    let values = reader.pull_all(0).unwrap();
    assert!(values.iter().all(|value| *value == expected), "{expected}, not {values:?}");
}

fn open(worker: &Worker, definition: &Definition) -> Client {
    Client::open(&worker.job_address, definition, LONG).unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let text = result.unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn no_push_is_lost_or_doubled_when_a_server_dies() {
    for consistency in ["sync", "async"] {
        let coordinator = coordinator(2);
        let mut servers = servers(&coordinator, 3);
        let definition = definition(consistency, "sgd:lr=1", 1);
        let workers = workers(&coordinator, 2);
        let pushes = AtomicUsize::new(0);
        thread::scope(|scope| {
            for worker in &workers {
                let (definition, pushes) = (&definition, &pushes);
                scope.spawn(move || {
                    let mut client = open(worker, definition);
                    for _ in 0..60 {
                        worker.push_ones(&mut client);
                        pushes.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while pushes.load(Ordering::Relaxed) < 40 {
                thread::yield_now();
            }
            drop(servers.remove(0));
        });
        check(&coordinator, 120.0);
    }
}

#[test]
fn workers_go_on_while_the_coordinator_is_away() {
    let coordinator = coordinator(1);
    let _servers = servers(&coordinator, 2);
    let worker = workers(&coordinator, 1).remove(0);
    let mut client = open(&worker, &definition("sync", "sgd:lr=1", 1));
    worker.push_ones(&mut client);
    drop(coordinator);
    (0..20).for_each(|_| worker.push_ones(&mut client));
    let values = client.pull_all(0).unwrap();
    assert!(values.iter().all(|value| *value == 21.0), "{values:?}");
}

#[test]
fn mistakes_are_one_line_and_the_others_go_on() {
    let coordinator = coordinator(1);
    let _servers = servers(&coordinator, 2);
    let job = definition("async", "sgd:lr=1", 1);
    let worker = workers(&coordinator, 1).remove(0);
    let mut client = open(&worker, &job);

    let mut job_address = JobAddress::new(coordinator.address(), "another").unwrap();
    let text = refusal(Client::open(&job_address, &job, LONG));
    assert!(text.ends_with("has another job token than this side"), "{text}");
    job_address.token = TOKEN.to_owned();
    let mut other = job.clone();
    other.tables[0].width = 4;
    let text = refusal(Client::open(&job_address, &other, LONG));
    assert_eq!(text, "table 'rows' with width 4, in the job 3");
    other.tables[0].width = 0;
    let text = refusal(Client::open(&job_address, &other, LONG));
    assert_eq!(text, "0 values per row of table 'rows', expected 1 to 65536");

    let gradient =
        |rows: &'static [u64], values: &'static [f32]| Gradient { table: 0, rows, values };
    let text = refusal(client.push(&[gradient(&[ROWS], &[0.0; 3])]));
    assert_eq!(text, "row 100 of table 'rows', expected below 100");
    let text = refusal(client.push(&[gradient(&[1], &[0.0; 4])]));
    assert_eq!(text, "gradient of 4 values for 1 rows of table 'rows', expected 3 for each row");
    let text = refusal(client.pull(&[(1, &[0])], &mut []));
    assert_eq!(text, "table 1, expected one of 0..1");
    let text = refusal(client.pull(&[(0, &[0])], &mut [0.0; 2]));
    assert_eq!(text, "buffer of 2 values for a pull, expected 3");

    worker.push_ones(&mut client);
    check(&coordinator, 1.0);
}

#[test]
fn who_waits_in_vain_is_told_what_is_missing_and_may_wait_on() {
    let coordinator = coordinator(2);
    let _servers = servers(&coordinator, 2);
    let job = definition("sync", "sgd:lr=1", 1);
    let both = workers(&coordinator, 2);
    let mut second = open(&both[1], &job);
    // After a read of every shard, all servers have their shards and know the workers.
    second.pull_all(0).unwrap();
    let mut first = Client::open(&both[0].job_address, &job, Duration::from_secs(5)).unwrap();
    let (rows, values) = ([5], [-1.0; WIDTH]);
    let gradient = [Gradient { table: 0, rows: &rows, values: &values }];
    let error = first.push(&gradient).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    let text = error.to_string();
    let waits =
        format!("no answer within 5 s: {SHARDS} requests wait, the first is a push of shard 0");
    let slowest = format!(": it waits for worker {}, which is at step 0", both[1].job_address.id);
    assert!(text.starts_with(&waits) && text.ends_with(&slowest), "{text}");

    assert_eq!(first.finish_push().unwrap_err().kind(), Kind::Timeout, "it is still under way");
    second.push(&gradient).unwrap();
    first.finish_push().unwrap();
    let mut out = [0.0; WIDTH];
    first.pull(&[(0, &rows)], &mut out).unwrap();
    assert_eq!(out, [2.0; WIDTH]);
}

#[test]
fn a_step_that_is_refused_counts_as_one_without_gradients() {
    let coordinator = coordinator(2);
    let _servers = servers(&coordinator, 2);
    let job = definition("sync", "sgd:lr=1", 1);
    let both = workers(&coordinator, 2);
    let [mut first, mut second] = [&both[0], &both[1]].map(|worker| open(worker, &job));
    let rows = [5];
    for (value, refusal) in [(-1.0, None), (f32::NAN, Some("NaN")), (f32::INFINITY, Some("inf"))] {
        let values = [value; WIDTH];
        second.begin_push(&[Gradient { table: 0, rows: &rows, values: &[-1.0; WIDTH] }]).unwrap();
        let pushed = first.push(&[Gradient { table: 0, rows: &rows, values: &values }]);
        let text = pushed.err().map(|error| error.to_string());
        let expected = refusal.map(|value| {
            format!("gradient {value} for row 5 of table 'rows', expected a finite number")
        });
        assert_eq!(text, expected);
        second.finish_push().unwrap();
    }
    let mut out = [0.0; WIDTH];
    first.pull(&[(0, &rows)], &mut out).unwrap();
    assert_eq!((out, first.pushes()), ([4.0; WIDTH], 3));
}

#[test]
fn a_worker_that_only_reads_is_not_counted() {
    let coordinator = coordinator(2);
    let _servers = servers(&coordinator, 2);
    let job = definition("async", "sgd:lr=1", 0);
    let both = workers(&coordinator, 2);
    let [mut first, mut second] = [&both[0], &both[1]].map(|worker| open(worker, &job));
    let push = |client: &mut Client| {
        client.push(&[Gradient { table: 0, rows: &[5], values: &[-1.0; WIDTH] }]).unwrap();
    };
    second.pull_all(0).unwrap();
    assert_eq!(second.pushing(), None, "all may still push");
    (0..3).for_each(|_| push(&mut first));
    assert_eq!(first.pushing(), Some(1));
    push(&mut second);
    assert_eq!(second.pushing(), Some(2));
    push(&mut first);
    assert_eq!(first.pushing(), Some(2));
}

#[test]
fn a_lost_shard_is_named() {
    let coordinator = coordinator(1);
    let mut servers = servers(&coordinator, 2);
    let worker = workers(&coordinator, 1).remove(0);
    let mut client = open(&worker, &definition("async", "sgd:lr=1", 0));
    worker.push_ones(&mut client);
    let id = servers[0].id();
    drop(servers.remove(0));
    let (rows, values) = ([5], [-1.0; WIDTH]);
    let gradient = [Gradient { table: 0, rows: &rows, values: &values }];
    let error = client.push(&gradient).unwrap_err();
    assert_eq!(error.kind(), Kind::Lost, "{error}");
    assert!(
        error.to_string().ends_with(&format!("is lost: its last servers were {id}")),
        "{error}"
    );
}

#[test]
fn a_lost_shard_of_a_sole_server_is_named() {
    let coordinator = coordinator(1);
    let mut servers = servers(&coordinator, 1);
    let worker = workers(&coordinator, 1).remove(0);
    let job = Definition { servers: 1, ..definition("async", "sgd:lr=1", 0) };
    let mut client = open(&worker, &job);
    worker.push_ones(&mut client);
    let id = servers[0].id();
    drop(servers.remove(0));
    let error = client.pull_all(0).unwrap_err();
    assert_eq!(error.kind(), Kind::Lost, "{error}");
    assert_eq!(error.to_string(), format!("shard 0 is lost: its last servers were {id}"));
    let hint = "continue from a snapshot (--restore), with backups of each shard (--replicas)";
    assert_eq!(error.hint(), Some(hint));
}

#[test]
fn a_job_without_servers_is_told_so() {
    let coordinator = coordinator(1);
    let _servers = servers(&coordinator, 1);
    let worker = workers(&coordinator, 1).remove(0);
    let job = definition("async", "sgd:lr=1", 0);
    let soon = Duration::from_secs(5);
    let text = refusal(Client::open(&worker.job_address, &job, soon));
    assert_eq!(text, "1 of 2 servers are there after 5 s");
}
