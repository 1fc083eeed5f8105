//! Trainings of real processes against real servers, of which some are killed.

mod support;

use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::{Ended, Folder, eventually, finish, kill, losses, train_arguments};
use thinwire_job::Settings;
use thinwire_job::elastic::{
    Authority, Coordinator, Job, Operator, Options, Presence, Seat, Servers,
};
use thinwire_server::{Client, Configuration, Definition, Gradient, Reader, TableDefinition};

/// A training against two servers.
const FLAGS: [&str; 10] = [
    "--mode",
    "server",
    "--servers",
    "2",
    "--checkpoint-dir",
    "none",
    "--sample-bytes",
    "0",
    "--validation-batches",
    "0",
];

/// Losses of a training that the launcher starts with its servers.
fn launched(folder: &Folder, flags: &[&str]) -> Vec<f64> {
    let flags = [&FLAGS[..], &["--ranks", "2", "--steps", "30", "--json"], flags].concat();
    losses(folder.train(&flags))
}

#[test]
fn a_training_learns_and_a_bound_of_zero_is_synchronous() {
    let folder = Folder::new("servers-launched");
    let sync = launched(&folder, &["--optimizer", "adamw:lr=0.01"]);
    assert_eq!(sync.len(), 30);
    assert!(sync[29] < 0.9 * sync[0], "{sync:?}");
    let bounded =
        launched(&folder, &["--optimizer", "adamw:lr=0.01", "--consistency", "bounded:0"]);
    assert_eq!(sync, bounded);
}

#[test]
fn steps_are_those_of_a_training_without_servers() {
    let folder = Folder::new("servers-alike");
    let flags = ["--checkpoint-dir", "none", "--sample-bytes", "0", "--validation-batches", "0"];
    let flags = [&flags[..], &["--ranks", "1", "--steps", "3", "--json"]].concat();
    let plain = [&flags[..], &["--codec", "none", "--lr", "0.01", "--warmup", "2"]].concat();
    // The rate rises to its peak in the second step, and stays there in the third.
    let served = |rate: &str| {
        let servers = ["--mode", "server", "--servers", "1", "--optimizer", rate];
        losses(folder.train(&[&flags[..], &servers].concat()))
    };
    let plain = losses(folder.train(&plain));
    let half = served("adamw:lr=0.005");
    assert!((plain[0] - half[0]).abs() < 1e-6, "{plain:?} {half:?}");
    assert!((plain[1] - half[1]).abs() < 1e-5, "{plain:?} {half:?}");
    assert!((plain[2] - half[2]).abs() > 1e-4, "{plain:?} {half:?}");
}

/// A coordinator in this process, and processes that join it.
struct Started {
    coordinator: Coordinator,
    folder: Folder,
}

impl Started {
    fn new(name: &str, ranks: u32) -> Started {
        let options = |min, max| Options::new(Authority::Saved, min, max);
        let servers = Some(Servers::new(options(1, 8), Configuration::default));
        let job = Job { workers: options(ranks, 2), servers };
        let coordinator = Coordinator::bind("127.0.0.1:0", "", job, None, |_event| {}).unwrap();
        Started { coordinator, folder: Folder::new(name) }
    }

    fn start(&self, seat: Seat, arguments: &[&str]) -> Child {
        self.folder.command(arguments).envs(seat.variables()).spawn().unwrap()
    }

    fn server(&self) -> Child {
        self.start(Seat::server(self.coordinator.address(), "").unwrap(), &["server"])
    }

    fn worker(&self, flags: &[&str]) -> Child {
        let seat = Seat::new(self.coordinator.address(), "").unwrap();
        self.start(seat, &train_arguments(&[&FLAGS[..], flags].concat()))
    }

    /// Number of writes that all primaries together have applied.
    fn writes(&self) -> u64 {
        let patience = Duration::from_secs(60);
        let mut operator = Operator::connect(&self.coordinator.address(), "", patience).unwrap();
        let status: serde_json::Value = serde_json::from_str(&operator.status().unwrap()).unwrap();
        let members = status["servers"]["members"].as_array().cloned().unwrap_or_default();
        members.iter().filter_map(|it| it["figures"]["updates"].as_u64()).sum()
    }
}

#[test]
fn a_killed_server_costs_no_training() {
    let job = Started::new("servers-killed", 2);
    let mut servers: Vec<Child> = (0..2).map(|_| job.server()).collect();
    let flags = ["--steps", "1500", "--ranks", "1:2", "--json", "--consistency", "async"];
    let workers: Vec<Child> = (0..2).map(|_| job.worker(&flags)).collect();
    eventually(|| (job.writes() > 400).then_some(()));
    let victim = servers.remove(0);
    kill(victim.id());
    finish(victim);
    let ended: Vec<Ended> = workers.into_iter().map(finish).collect();
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    for server in servers {
        kill(server.id());
        finish(server);
    }
}

/// Rows of the counted table.
const ROWS: u64 = 64;
/// Pushes of each worker.
const PUSHES: u32 = 400;

/// Pushes ones to all rows as a worker of the job; returns the longest time that one push took.
fn push_ones(coordinator: &str, begun: &AtomicU32) -> Duration {
    let seat = Seat::new(coordinator, "").unwrap();
    let options = Options::new(Authority::Saved, 1, 2);
    let presence = Presence::join(&seat, &Settings::default(), options, Vec::new()).unwrap();
    let table = TableDefinition {
        name: "counts".to_owned(),
        rows: ROWS,
        width: 4,
        // Minus one per push, exactly.
        optimizer: "sgd:lr=1".to_owned(),
        initial: "zeros".to_owned(),
        seed: 0,
        stream: 0,
    };
    let definition = Definition {
        tables: vec![table],
        consistency: "async".to_owned(),
        shards: 8,
        backups: 1,
        servers: 3,
    };
    let mut client = Client::open(&seat, &definition, Duration::from_secs(60)).unwrap();
    let (rows, values) = ((0..ROWS).collect::<Vec<_>>(), [1.0; 4 * ROWS as usize]);
    let gradient = Gradient { table: 0, rows: &rows, values: &values };
    let mut longest = Duration::ZERO;
    for _ in 0..PUSHES {
        let pushed = Instant::now();
        client.push(&[gradient]).unwrap();
        longest = longest.max(pushed.elapsed());
        begun.fetch_add(1, Ordering::Relaxed);
    }
    presence.leave();
    longest
}

#[test]
fn acknowledged_pushes_survive_a_kill_and_count_once() {
    let rounds = std::env::var("THINWIRE_KILLS").ok().and_then(|text| text.parse().ok());
    for round in 0..rounds.unwrap_or(1) {
        let job = Started::new(&format!("servers-counted-{round}"), 1);
        let mut servers: Vec<Child> = (0..3).map(|_| job.server()).collect();
        let (address, begun) = (job.coordinator.address(), AtomicU32::new(0));
        let longest = std::thread::scope(|scope| {
            let workers = [0, 1].map(|_| scope.spawn(|| push_ones(&address, &begun)));
            let at = 100 + 37 * (round % 15);
            eventually(|| (begun.load(Ordering::Relaxed) >= at).then_some(()));
            let victim = servers.remove(round as usize % 3);
            kill(victim.id());
            finish(victim);
            servers.push(job.server());
            workers.map(|worker| worker.join().unwrap()).into_iter().max()
        });
        let mut reader = Reader::open(&address, "", Duration::from_secs(60)).unwrap();
        let counts = reader.pull_all(0).unwrap();
        assert!(counts.iter().all(|count| *count == -2.0 * PUSHES as f32), "{counts:?}");
        eprintln!("round {round}: the longest push took {:.2} s", longest.unwrap().as_secs_f64());
        for server in servers {
            kill(server.id());
            finish(server);
        }
    }
}

#[test]
fn flags_without_a_meaning_are_refused() {
    let folder = Folder::new("servers-refused");
    let refused = |flags: &[&str]| folder.train(flags).error().to_owned();
    assert_eq!(refused(&["--servers", "2"]), "error: --servers 2 without servers");
    assert_eq!(
        refused(&["--mode", "server", "--codec", "int8"]),
        "error: --codec int8 with --mode server, where gradients travel raw"
    );
    assert_eq!(
        refused(&["--mode", "server", "--servers", "2", "--replicas", "2"]),
        "error: --replicas 2 with 2 servers, of which each shard needs 3"
    );
    let ended = folder.run(&["server"]);
    assert_eq!(ended.error(), "error: no coordinator for this server");
}
