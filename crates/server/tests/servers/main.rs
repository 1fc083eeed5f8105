//! Laws of servers over loopback: several in one process, with a coordinator and a worker.
//!
//! Gradients are whole numbers and the optimiser is `sgd:lr=1`, so that values show how often a push was
//! applied.

mod worker;

use std::time::{Duration, Instant};

use thinwire_job::Settings;
use thinwire_job::elastic::{Coordinator, CoordinatorMode, Id, Job, JobAddress, Options, Servers};
use thinwire_server::{
    Configuration, Definition, JobState, Limits, MemoryLimit, Server, ServerOptions, Stats,
    TableDefinition,
};

use worker::Worker;

/// Time limit of every wait.
const LONG: Duration = Duration::from_secs(300);
const TOKEN: &str = "secret";
const SHARDS: u32 = 4;
const ROWS: u64 = 40;

fn options(max: u32) -> Options {
    // Longer than usual: the machine may do more than these tests.
    let silence = Duration::from_secs(8);
    Options { silence, ..Options::new(CoordinatorMode::Saved, 1, max) }
}

fn coordinator() -> Coordinator {
    let servers = Some(Servers::new(options(8), Configuration::new));
    let job = Job { workers: options(8), servers };
    Coordinator::bind("127.0.0.1:0", TOKEN, job, None, |_| {}).unwrap()
}

fn server(coordinator: &Coordinator) -> Server {
    let job_address = JobAddress::server(coordinator.address(), TOKEN).unwrap();
    Server::start(&job_address, "127.0.0.1:0", &Settings::default()).unwrap()
}

fn definition(consistency: &str, backups: u32) -> Definition {
    let table = |name: &str, width| TableDefinition {
        name: name.to_owned(),
        rows: ROWS,
        width,
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 1,
        stream: 0,
        values: "f32".to_owned(),
    };
    let (tables, consistency) = (vec![table("one", 1), table("two", 3)], consistency.to_owned());
    Definition { tables, consistency, shards: SHARDS, backups, servers: 2, restore: None }
}

/// Checks that all values of all rows are `expected`.
fn check(worker: &mut Worker, expected: f32) {
    for shard in 0..SHARDS {
        let values = worker.pull(shard);
        assert!(values.iter().all(|value| *value == expected), "{expected}, not {values:?}");
    }
}

fn push(worker: &mut Worker) {
    (0..SHARDS).for_each(|shard| worker.push(shard));
}

/// Returns whether every shard has `replicas` replicas, all among these servers, and no learner.
fn is_settled(state: &JobState, servers: &[&Server], replicas: usize) -> bool {
    let is_there = |id: &Id| servers.iter().any(|server| server.id() == *id);
    state.is_founded()
        && state.views.iter().all(|view| {
            view.learners.is_empty()
                && view.replicas.len() == replicas
                && view.replicas.iter().all(is_there)
        })
}

#[test]
fn acknowledged_pushes_survive_servers_that_go_and_come() {
    let coordinator = coordinator();
    let (first, second) = (server(&coordinator), server(&coordinator));
    let mut worker = Worker::join(&coordinator.address(), definition("async", 1));
    worker.wait(|state| is_settled(state, &[&first, &second], 2));
    (0..20).for_each(|_| push(&mut worker));
    check(&mut worker, 20.0);

    let gone = Instant::now();
    drop(first);
    push(&mut worker);
    println!("the backup took over within {:?}", gone.elapsed());
    (0..19).for_each(|_| push(&mut worker));
    check(&mut worker, 40.0);

    let third = server(&coordinator);
    let mut pushes = 0;
    while !is_settled(worker.state(), &[&second, &third], 2) {
        push(&mut worker);
        pushes += 1;
        assert!(gone.elapsed() < LONG, "{:?}", worker.state());
    }
    println!("{pushes} steps while the third server took over copies");
    drop(second);
    push(&mut worker);
    worker.wait(|state| is_settled(state, &[&third], 1));
    check(&mut worker, 41.0 + pushes as f32);
    // Stats may be a second old.
    let told = |stats: Stats| (stats.copies, stats.rows) == (SHARDS.into(), 2 * ROWS);
    while !told(third.stats()) {
        assert!(gone.elapsed() < LONG, "{:?}", third.stats());
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn rows_move_to_a_server_that_is_added() {
    let coordinator = coordinator();
    let (first, second) = (server(&coordinator), server(&coordinator));
    let mut worker = Worker::join(&coordinator.address(), definition("bounded:2", 0));
    worker.wait(|state| is_settled(state, &[&first, &second], 1));
    push(&mut worker);
    let third = server(&coordinator);
    worker.wait(|state| {
        let has = |view: &thinwire_server::View| view.replicas.contains(&third.id());
        is_settled(state, &[&first, &second, &third], 1) && state.views.iter().any(has)
    });
    push(&mut worker);
    check(&mut worker, 2.0);
}

#[test]
fn a_reader_needs_no_place_in_the_job() {
    let coordinator = coordinator();
    let servers = [server(&coordinator), server(&coordinator)];
    let mut worker = Worker::join(&coordinator.address(), definition("sync", 1));
    worker.wait(|state| is_settled(state, &[&servers[0], &servers[1]], 2));
    push(&mut worker);
    let mut reader = Worker::reader(&coordinator.address());
    reader.wait(|state| is_settled(state, &[&servers[0], &servers[1]], 2));
    check(&mut reader, 1.0);
}

#[test]
fn a_client_that_reads_none_of_its_answers_stalls_nobody() {
    for consistency in ["async", "bounded:1"] {
        let coordinator = coordinator();
        let servers = [server(&coordinator), server(&coordinator)];
        let mut worker = Worker::join(&coordinator.address(), definition(consistency, 1));
        worker.wait(|state| is_settled(state, &[&servers[0], &servers[1]], 2));
        let mut reader = Worker::reader(&coordinator.address());
        reader.wait(|state| is_settled(state, &[&servers[0], &servers[1]], 2));
        let _deaf: Vec<_> = (0..SHARDS).map(|shard| reader.flood(shard)).collect();
        (0..10).for_each(|_| push(&mut worker));
        check(&mut worker, 10.0);
    }
}

#[test]
fn a_worker_beyond_its_rate_is_slower_and_loses_nothing() {
    let coordinator = coordinator();
    let limits = || Limits { client_rate: "1mbit".parse().ok(), ..Limits::default() };
    let start = || {
        let job_address = JobAddress::server(coordinator.address(), TOKEN).unwrap();
        let options = ServerOptions { limits: limits(), ..ServerOptions::default() };
        let settings = Settings::default();
        Server::with_options(&job_address, "127.0.0.1:0", &settings, options).unwrap()
    };
    let servers = [start(), start()];
    let mut worker = Worker::join(&coordinator.address(), definition("async", 1));
    worker.wait(|state| is_settled(state, &[&servers[0], &servers[1]], 2));
    // About 100 kB to each server.
    (0..100).for_each(|_| push(&mut worker));
    check(&mut worker, 100.0);
}

#[test]
fn rows_beyond_the_memory_of_a_server_survive_servers_that_go_and_come() {
    let coordinator = coordinator();
    let start = || {
        let memory = MemoryLimit { bytes_max: 40_000, folder: std::env::temp_dir() };
        let limits = Limits { memory: Some(memory), ..Limits::default() };
        let job_address = JobAddress::server(coordinator.address(), TOKEN).unwrap();
        let options = ServerOptions { limits, ..ServerOptions::default() };
        let settings = Settings::default();
        Server::with_options(&job_address, "127.0.0.1:0", &settings, options).unwrap()
    };
    let (first, second) = (start(), start());
    let mut definition = definition("async", 1);
    (definition.tables[1].rows, definition.tables[1].width) = (100, 300);
    let mut worker = Worker::join(&coordinator.address(), definition);
    worker.wait(|state| is_settled(state, &[&first, &second], 2));
    (0..5).for_each(|_| push(&mut worker));
    check(&mut worker, 5.0);
    drop(first);
    let third = start();
    worker.wait(|state| is_settled(state, &[&second, &third], 2));
    drop(second);
    (0..5).for_each(|_| push(&mut worker));
    check(&mut worker, 10.0);
    let begun = Instant::now();
    let is_spilled = |stats: Stats| stats.spilled > 0 && stats.bytes <= 40_000;
    while !is_spilled(third.stats()) {
        assert!(begun.elapsed() < LONG, "{:?}", third.stats());
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn a_worker_s_id_is_no_server_s() {
    let coordinator = coordinator();
    let job_address = JobAddress::new(coordinator.address(), TOKEN).unwrap();
    let error = Server::start(&job_address, "127.0.0.1:0", &Settings::default()).unwrap_err();
    let id = job_address.id;
    assert_eq!(error.to_string(), format!("{id} is the id of a worker, expected a server's"));
}
