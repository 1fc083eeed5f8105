//! Trainings with real processes and servers, some of which are killed.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::time::Duration;

use support::{
    Folder, SILENCE, eventually, finish, finish_all, free_port, kill, losses, signal,
    train_arguments,
};
use thinwire_job::elastic::{
    Coordinator, CoordinatorMode, Job, JobAddress, Operator, Options, Servers,
};
use thinwire_server::Configuration;

/// Flags of a training with two servers.
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

/// Returns the losses of a training that the launcher starts with its servers.
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
    let plain =
        [&flags[..], &["--codec", "none", "--lr", "0.01", "--lr-warmup-steps", "2"]].concat();
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

#[test]
fn losses_are_those_of_the_whole_batch_whatever_the_number_of_ranks() {
    let folder = Folder::new("servers-losses");
    let few = ["--validation-batches", "2", "--steps", "4", "--json", "--clip", "0"];
    let run = |ranks: &str| {
        let flags = [&FLAGS[..8], &few, &["--ranks", ranks, "--optimizer", "sgd:lr=0.1"]].concat();
        let json = folder.train(&flags).json();
        let points = json[0]["losses"].as_array().unwrap().iter().map(|point| &point["value"]);
        let all = points.chain([&json[0]["validation_loss"]]);
        all.map(|value| value.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let (one, two) = (run("1"), run("2"));
    let pairs = one.iter().zip(&two);
    assert!(pairs.into_iter().all(|(one, two)| (one - two).abs() < 1e-5), "{one:?} {two:?}");
    assert_eq!(one.len(), 5);
}

#[test]
fn a_step_through_servers_and_by_all_reduce_is_one_by_all_reduce() {
    let folder = Folder::new("servers-hybrid");
    let flags = ["--checkpoint-dir", "none", "--sample-bytes", "0", "--validation-batches", "0"];
    let flags = [&flags[..], &["--ranks", "2", "--steps", "3", "--json", "--clip", "0"]].concat();
    let rates = ["--lr", "0.01", "--lr-warmup-steps", "2"];
    let plain = losses(folder.train(&[&flags[..], &rates, &["--codec", "none"]].concat()));
    // The rate rises to its peak in the second step; up to there the servers' rate is that of the first step.
    let hybrid = |codec| {
        let servers = ["--mode", "hybrid", "--server-params", "embedding.*", "--servers", "2"];
        let more = ["--optimizer", "adamw:lr=0.005", "--codec", codec];
        losses(folder.train(&[&flags[..], &rates, &servers, &more].concat()))
    };
    let found = hybrid("none");
    assert!((plain[0] - found[0]).abs() < 1e-6, "{plain:?} {found:?}");
    assert!((plain[1] - found[1]).abs() < 1e-5, "{plain:?} {found:?}");
    assert!((plain[2] - found[2]).abs() > 1e-5, "{plain:?} {found:?}");
    let coded = hybrid("int8");
    assert_eq!(coded[0], found[0]);
    assert!((plain[2] - coded[2]).abs() < 0.05, "{plain:?} {coded:?}");
}

/// Coordinator in this process, and processes that join it.
struct Started {
    coordinator: Coordinator,
    folder: Folder,
}

impl Started {
    fn new(name: &str, ranks: u32) -> Started {
        let options = |min, max| Options {
            silence: SILENCE,
            ..Options::new(CoordinatorMode::Saved, min, max)
        };
        let servers = Some(Servers::new(options(1, 8), Configuration::default));
        let job = Job { workers: options(ranks, 2), servers };
        let coordinator = Coordinator::bind("127.0.0.1:0", "", job, None, |_event| {}).unwrap();
        Started { coordinator, folder: Folder::new(name) }
    }

    fn start(&self, job_address: JobAddress, arguments: &[&str]) -> Child {
        self.folder.command(arguments).envs(job_address.variables()).spawn().unwrap()
    }

    fn server(&self) -> Child {
        self.start(JobAddress::server(self.coordinator.address(), "").unwrap(), &["server"])
    }

    fn worker(&self, flags: &[&str]) -> Child {
        let job_address = JobAddress::new(self.coordinator.address(), "").unwrap();
        self.start(job_address, &train_arguments(&[&FLAGS[..], flags].concat()))
    }

    fn status(&self) -> serde_json::Value {
        let patience = Duration::from_secs(60);
        let mut operator = Operator::connect(&self.coordinator.address(), "", patience).unwrap();
        serde_json::from_str(&operator.status().unwrap()).unwrap()
    }

    /// Returns the number of workers in the epoch.
    fn ranks(&self) -> usize {
        self.status()["members"].as_array().map_or(0, Vec::len)
    }

    /// Returns the largest number of steps that a worker has reported.
    fn step(&self) -> u64 {
        let status = self.status();
        let members = status["members"].as_array().into_iter().flatten();
        members.filter_map(|it| it["step"].as_u64()).max().unwrap_or(0)
    }

    /// Returns the number of updates applied by all servers.
    fn writes(&self) -> u64 {
        let status = self.status();
        let members = status["servers"]["members"].as_array().cloned().unwrap_or_default();
        members.iter().filter_map(|it| it["figures"]["updates"].as_u64()).sum()
    }
}

#[test]
fn a_worker_that_is_started_by_hand_makes_the_folder_of_its_checkpoints() {
    let job = Started::new("servers-by-hand", 1);
    let server = job.server();
    let job_address = JobAddress::new(job.coordinator.address(), "").unwrap();
    let flags = ["--mode", "server", "--servers", "1", "--steps", "3", "--checkpoint-dir", "a/b"];
    let flags = [&flags[..], &["--ranks", "1:2", "--validation-batches", "0"]].concat();
    let ended = finish(job.start(job_address, &train_arguments(&flags)));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(job.folder.path().join("a/b/step-000003").is_dir());
    kill(server.id());
    finish(server);
}

#[test]
fn a_worker_that_waits_for_its_first_epoch_says_for_whom() {
    let job = Started::new("servers-waiting", 2);
    let mut worker = job.worker(&["--steps", "3", "--ranks", "1:2"]);
    let lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    let said = "waiting for up to 60 s: 1 of at least 2 ranks are there";
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with(said)));
    kill(worker.id());
    finish(worker);
}

#[test]
fn a_killed_server_costs_no_training() {
    let job = Started::new("servers-killed", 2);
    let mut servers: Vec<Child> = (0..2).map(|_| job.server()).collect();
    let flags = ["--steps", "1500", "--ranks", "1:2", "--json", "--consistency", "bounded:4"];
    let workers: Vec<Child> = (0..2).map(|_| job.worker(&flags)).collect();
    eventually(|| (job.writes() > 400).then_some(()));
    let victim = servers.remove(0);
    kill(victim.id());
    finish(victim);
    let ended = finish_all(workers);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    for server in servers {
        kill(server.id());
        finish(server);
    }
}

#[test]
fn a_server_among_six_has_no_more_threads_than_one_of_two() {
    let threads = [2, 6].map(|count: usize| {
        let job = Started::new("servers-threads", 1);
        let mut children: Vec<Child> = (0..count).map(|_| job.server()).collect();
        let job_address = JobAddress::new(job.coordinator.address(), "").unwrap();
        let servers = ["--servers", &count.to_string(), "--replicas", "1"];
        let flags = ["--mode", "server", "--ranks", "1:2", "--steps", "1000000"];
        let flags = train_arguments(&[&FLAGS[4..], &servers, &flags].concat());
        children.push(job.start(job_address, &flags));
        eventually(|| (job.writes() > 20).then_some(()));
        let of = |it: &Child| std::fs::read_dir(format!("/proc/{}/task", it.id())).unwrap().count();
        let threads = children[..count].iter().map(of).max().unwrap();
        for child in children {
            kill(child.id());
            finish(child);
        }
        threads
    });
    assert!(threads[1] <= threads[0] && threads[0] <= 5, "{threads:?}");
}

#[test]
fn a_killed_sole_server_ends_its_worker_with_the_name_of_a_lost_shard() {
    let job = Started::new("servers-sole", 1);
    let server = job.server();
    let flags = ["--mode", "server", "--servers", "1", "--ranks", "1:2", "--steps", "1000000"];
    let job_address = JobAddress::new(job.coordinator.address(), "").unwrap();
    let worker = job.start(job_address, &train_arguments(&[&FLAGS[4..], &flags].concat()));
    eventually(|| (job.writes() > 20).then_some(()));
    kill(server.id());
    finish(server);
    let ended = finish(worker);
    let error = ended.error();
    assert!(error.contains("shard 0 is lost: its last servers were "), "{error}");
    assert!(ended.hint().contains("--restore") && ended.hint().contains("--replicas"));
}

#[test]
fn limits_and_formats_reach_the_servers_that_train_starts() {
    let folder = Folder::new("servers-limited");
    let few = ["--mode", "server", "--servers", "1", "--json"];
    let few = [&FLAGS[4..], &few].concat();
    let limit = ["--server-memory", "70kB", "--spill-dir", "."];
    let trained = |flags: &[&str]| {
        losses(folder.train(&[&few[..], &["--ranks", "2", "--steps", "30"], flags].concat()))
    };
    let plain = trained(&[]);
    assert_eq!(plain, trained(&limit));
    let coded = trained(&["--values", "int8"]);
    assert_ne!(plain, coded);
    assert!((plain[29] - coded[29]).abs() < 0.1, "{plain:?} {coded:?}");

    let address = free_address();
    let more = ["--ranks", "1:2", "--steps", "1000000", "--coordinator", &address];
    let asked =
        |words: &[&str]| folder.command(words).env("THINWIRE_TOKEN", "secret").spawn().unwrap();
    let launcher = asked(&train_arguments(&[&few[..], &more, &limit].concat()));
    let show = || finish(asked(&["server", "stats", "--coordinator", &address])).stdout;
    eventually(|| show().contains("memory  on disk").then_some(()));
    signal(launcher.id(), "TERM");
    finish(launcher);
}

#[test]
fn a_killed_worker_leaves_its_rows_to_the_others_and_a_joiner_ends_with_them() {
    let job = Started::new("servers-workers", 1);
    let servers: Vec<Child> = (0..2).map(|_| job.server()).collect();
    let flags = ["--steps", "3000", "--ranks", "1:2", "--json", "--consistency", "async"];
    let mut workers: Vec<Child> = (0..2).map(|_| job.worker(&flags)).collect();
    eventually(|| (job.ranks() == 2 && job.step() > 100).then_some(()));
    let victim = workers.remove(1);
    kill(victim.id());
    finish(victim);
    eventually(|| (job.ranks() == 1).then_some(()));
    let left = job.step();
    workers.push(job.worker(&flags));
    let ended = finish_all(workers);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let [survivor, joiner] = &ended[..] else { panic!("{ended:?}") };
    let words: Vec<&str> = joiner.stderr.split_whitespace().collect();
    let joined = words.windows(3).find(|words| words[..2] == ["after", "step"]).unwrap();
    let joined: u64 = joined[2].trim_end_matches(',').parse().unwrap();
    assert!((left..3000).contains(&joined), "{left} {joined}");
    assert!(joiner.stderr.contains("all 3000 steps are done here"), "{}", joiner.stderr);
    for ranks in ["1 rank", "2 ranks"] {
        assert!(survivor.stderr.contains(&format!(": {ranks}")), "{}", survivor.stderr);
    }
    for server in servers {
        kill(server.id());
        finish(server);
    }
}

/// Returns the metrics at the address that a process prints on standard error, once they contain `word`.
fn metrics(address: &str, word: &str) -> String {
    eventually(|| page(address, word))
}

/// Returns the metrics at an address if they contain `word`.
fn page(address: &str, word: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    // Who has not asked within two seconds is not waited for.
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.contains(word).then_some(text)
}

/// Returns an address with a free port.
fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn servers_and_ranks_show_what_they_do() {
    let job = Started::new("servers-shown", 1);
    let (at_server, at_rank) = (free_address(), free_address());
    let job_address = || JobAddress::server(job.coordinator.address(), "").unwrap();
    let servers = [job.start(job_address(), &["server", "--metrics", &at_server]), job.server()];
    let flags = ["--steps", "100000", "--ranks", "1:2", "--metrics", &at_rank];
    let rank = job.worker(&flags);
    let text = metrics(&at_rank, "thinwire_rank_step 1");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    metrics(&at_server, "thinwire_server_shards{role=\"primary\"} 8");
    metrics(&at_server, "thinwire_server_staleness_steps_bucket{worker=");
    let address = job.coordinator.address();
    let ask =
        |words: &[&str]| job.folder.run(&[words, &["--coordinator", &address]].concat()).done();
    let stats = eventually(|| Some(ask(&["server", "stats"])).filter(|it| it.contains("8 of 16")));
    assert!(stats.starts_with("epoch "), "{stats}");
    assert!(ask(&["top"]).contains("8 of 16"));
    let json: serde_json::Value =
        serde_json::from_str(&ask(&["server", "stats", "--json"])).unwrap();
    assert_eq!(json["members"][0]["figures"]["primaries"], 8);
    // The ports after one that the system chose are seldom taken.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_at = taken.local_addr().unwrap();
    let port = taken_at.port();
    let next = job.start(job_address(), &["server", "--metrics", &taken_at.to_string()]);
    let at_next = |port: u16| page(&format!("127.0.0.1:{port}"), "thinwire_server_shards");
    eventually(|| (1..16).find_map(|step| at_next(port.checked_add(step)?)));
    for child in servers.into_iter().chain([rank, next]) {
        kill(child.id());
        finish(child);
    }
}

#[test]
fn flags_without_a_meaning_are_refused() {
    let folder = Folder::new("servers-refused");
    let refused = |flags: &[&str]| folder.train(flags).error().to_owned();
    assert_eq!(refused(&["--servers", "2"]), "error: --servers 2 needs servers");
    assert_eq!(
        refused(&["--mode", "server", "--codec", "int8"]),
        "error: --codec int8 cannot be used with --mode server: there, --values sets the encoding of gradients"
    );
    assert_eq!(
        refused(&["--mode", "server", "--lr", "0.5"]),
        "error: --lr 0.5 cannot be used with --mode server: there, --optimizer sets the learning rate"
    );
    assert_eq!(
        refused(&["--mode", "server", "--servers", "2", "--replicas", "2"]),
        "error: --replicas 2 needs 3 servers for each shard, found 2"
    );
    let many = folder.train(&["--mode", "server", "--servers", "257"]);
    let expected = "error: --servers 257 on this machine, expected at most 256: ";
    assert!(many.error().starts_with(expected), "{many:?}");
    assert!(many.hint().contains("thinwire server --coordinator"), "{many:?}");
    let unwritable = refused(&["--mode", "server", "--snapshot-dir", "text.txt"]);
    assert!(unwritable.starts_with("error: cannot write snapshots to text.txt: "), "{unwritable}");
    let nothing = refused(&["--mode", "server", "--restore", "nowhere"]);
    assert!(
        nothing.starts_with("error: no snapshot at nowhere: nowhere/manifest.json: "),
        "{nothing}"
    );
    let hybrid = ["--mode", "hybrid", "--server-params", "embd.*"];
    assert_eq!(
        refused(&hybrid),
        "error: --server-params 'embd.*' fits none of the model's 21 parameters"
    );
    assert_eq!(
        refused(&["--mode", "hybrid"]),
        "error: --mode hybrid needs the names of the parameters on servers"
    );
    assert_eq!(
        refused(&[&hybrid[..], &["--ranks", "1:2"]].concat()),
        "error: --mode hybrid needs a fixed number of ranks, found --ranks 1:2"
    );
    assert_eq!(
        refused(&["--mode", "server", "--server-params", "a"]),
        "error: --server-params 'a' cannot be used with --mode server: servers have all parameters"
    );
    assert_eq!(refused(&["--values", "int8"]), "error: --values int8 needs servers");
    assert_eq!(
        refused(&["--mode", "server", "--server-memory", "2GB"]),
        "error: --server-memory 2.00 GB needs a folder for the rows beyond it"
    );
    assert_eq!(
        refused(&["--mode", "server", "--spill-dir", "."]),
        "error: --spill-dir . needs a limit of memory"
    );
    let beyond = refused(&["--mode", "server", "--server-memory", "2GB", "--spill-dir", "none"]);
    let expected = "error: cannot make a file beyond the memory limit in none: No such file";
    assert!(beyond.starts_with(expected), "{beyond}");
    let limits = ["--server-memory", "2GB", "--spill-dir", "."];
    let by_hand = train_arguments(&[&FLAGS[..], &limits].concat());
    let by_hand = folder.command(&by_hand).env("THINWIRE_MEMBER", "new").spawn().unwrap();
    let expected = "error: --server-memory has no effect on a rank that starts no servers";
    assert_eq!(finish(by_hand).error(), expected);
    let ended = folder.run(&["server"]);
    assert_eq!(ended.error(), "error: no coordinator for this server");
    let limited = |flags: &[&str]| {
        let address = ["server", "--coordinator", "127.0.0.1:9", "--listen", "127.0.0.1:0"];
        folder.run(&[&address[..], flags].concat()).error().to_owned()
    };
    let error = limited(&["--memory", "2", "--spill-dir", "."]);
    assert!(error.contains("'2' is no number of bytes, expected for example 500MB"), "{error}");
    let error = limited(&["--memory", "2GB", "--spill-dir", "none"]);
    let expected = "error: cannot make a file beyond the memory limit in none: No such file";
    assert!(error.starts_with(expected), "{error}");
    let error = limited(&["--memory", "2GB"]);
    assert!(error.ends_with("arguments were not provided: --spill-dir <DIR>"), "{error}");
}
