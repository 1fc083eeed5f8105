//! Elastic jobs whose coordinator's state is in a real etcd: launchers and coordinators are killed and stopped,
//! and etcd itself is. Without the program `etcd` these tests say so, and pass.

#![cfg(feature = "etcd")]

mod support;

use std::fs::{File, read_to_string};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::Value;
use support::etcd::Etcd;
use support::{
    Folder, assert_same_rows, child_with, eventually, finish, finish_all, free_port, kill, losses,
    signal, train_arguments,
};
use thinwire_job::elastic::Operator;

const TOKEN: &str = "a token of enough bytes";
const PATIENCE: Duration = Duration::from_secs(60);
const LEADS: &str = "this process coordinates the job, at ";
const FLAGS: [&str; 8] =
    ["--steps", "300", "--codec", "none", "--checkpoint-dir", "none", "--sample-bytes", "0"];
/// For trainings that a signal ends.
const LONG: [&str; 2] = ["--steps", "1000000"];

/// A job in an etcd, and files with what its processes say.
struct Job {
    folder: Folder,
    store: String,
}

impl Job {
    fn new(name: &str) -> Option<(Job, Etcd)> {
        let folder = Folder::new(name);
        let etcd = Etcd::start(&folder)?;
        let store = etcd.store(name);
        Some((Job { folder, store }, etcd))
    }

    /// Starts the program; its standard error goes to a file of that name.
    fn start(&self, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Child {
        let error = File::create(self.folder.path().join(name)).unwrap();
        let mut command = self.folder.command(arguments);
        command.env("THINWIRE_TOKEN", TOKEN).envs(variables.iter().copied());
        // Longer than usual: the machine may do more than these tests.
        command.env("THINWIRE_HEARTBEAT_TIMEOUT_S", "6");
        command.stderr(error).spawn().unwrap()
    }

    /// Starts a launcher of two of one to four ranks.
    fn launcher(&self, name: &str, flags: &[&str]) -> Child {
        let size = ["--ranks", "1:4", "--local-ranks", "2", "--store", &self.store, "--json"];
        self.start(name, &train_arguments(&[flags, &FLAGS[2..], &size].concat()), &[])
    }

    fn coordinator(&self, name: &str) -> Child {
        self.start(name, &["coordinator", "--store", &self.store, "--ranks", "1:2"], &[])
    }

    /// Starts a rank by hand.
    fn member(&self, name: &str) -> Child {
        let variables = [("THINWIRE_MEMBER", "new"), ("THINWIRE_COORDINATOR", &*self.store)];
        self.start(name, &train_arguments(&[&LONG, &FLAGS[2..]].concat()), &variables)
    }

    fn said(&self, name: &str) -> String {
        read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Waits until a process has said this.
    fn wait(&self, name: &str, text: &str) {
        eventually(|| self.said(name).contains(text).then_some(()));
    }

    fn status(&self, address: &str) -> Option<Value> {
        let mut operator = Operator::connect(address, TOKEN, PATIENCE).ok()?;
        serde_json::from_str(&operator.status().ok()?).ok()
    }

    /// Waits until so many ranks have done so many steps, as the coordinator at this address says.
    fn step(&self, address: &str, ranks: usize, least: u64) -> u64 {
        eventually(|| {
            let status = self.status(address)?;
            let members = status["members"].as_array()?;
            let step = members.iter().filter_map(|member| member["step"].as_u64()).max()?;
            (members.len() == ranks && step >= least).then_some(step)
        })
    }
}

/// The two in the order: the one that leads, the other.
fn by_lead<'a>(job: &Job, names: [&'a str; 2]) -> [&'a str; 2] {
    let [first, second] = names;
    let leads = |name: &str| job.said(name).contains(LEADS);
    match eventually(|| (leads(first) || leads(second)).then(|| leads(first))) {
        true => [first, second],
        false => [second, first],
    }
}

#[test]
fn a_launcher_that_is_killed_is_succeeded_and_no_step_is_lost() {
    let Some((job, _etcd)) = Job::new("killed") else { return };
    let mut launchers = ["one", "two"].map(|name| (name, job.launcher(name, &FLAGS[..2])));
    let [leader, other] = by_lead(&job, ["one", "two"]);
    launchers.sort_by_key(|(name, _)| *name != leader);
    let [(_, killed), (_, stays)] = launchers;
    job.step(&job.store, 4, 50);
    kill(killed.id());
    job.wait(other, LEADS);
    assert_eq!(finish(killed).code, None);
    let ended = finish(stays);
    assert_eq!(ended.code, Some(0), "{}", job.said(other));
    assert!(
        job.said(other).contains("the coordinator continues with epoch"),
        "{}",
        job.said(other)
    );
    assert_same_rows(&job.folder, &FLAGS, &losses(ended));
}

#[test]
fn all_launchers_of_a_job_end_with_it_and_the_next_one_begins_anew() {
    let Some((job, _etcd)) = Job::new("over") else { return };
    for round in ["first", "second"] {
        let names = [format!("one-{round}"), format!("two-{round}")];
        let launchers = names.each_ref().map(|name| job.launcher(name, &["--steps", "40"]));
        let ended = finish_all(launchers);
        let printed = ended.iter().filter(|ended| !ended.stdout.is_empty()).count();
        for (ended, name) in ended.iter().zip(&names) {
            assert_eq!(ended.code, Some(0), "{}", job.said(name));
        }
        assert_eq!(printed, 1);
    }
}

#[test]
fn a_coordinator_that_was_stopped_beyond_its_lease_stands_by() {
    let Some((job, _etcd)) = Job::new("stopped") else { return };
    let mut coordinators = ["one", "two"].map(|name| (name, job.coordinator(name)));
    let [leader, other] = by_lead(&job, ["one", "two"]);
    coordinators.sort_by_key(|(name, _)| *name != leader);
    let [(_, stopped), (_, successor)] = coordinators;
    let (dies, stays) = (job.member("dies"), job.member("stays"));
    let step = job.step(&job.store, 2, 50);
    signal(stopped.id(), "STOP");
    job.wait(other, LEADS);
    kill(dies.id());
    finish(dies);
    job.step(&job.store, 1, step + 1);
    signal(stopped.id(), "CONT");
    job.wait(leader, "another coordinator has taken over");
    job.wait(leader, "standing by: the job's coordinator is at ");
    job.step(&job.store, 1, step + 2);
    kill(stays.id());
    finish(stays);
    for coordinator in [stopped, successor] {
        signal(coordinator.id(), "TERM");
        assert_eq!(finish(coordinator).code, Some(143));
    }
}

#[test]
fn training_goes_on_while_etcd_is_away_and_changes_when_it_is_back() {
    let Some((job, mut etcd)) = Job::new("away") else { return };
    let launcher = job.launcher("launcher", &LONG);
    let said = eventually(|| Some(job.said("launcher")).filter(|said| said.contains(LEADS)));
    let address = said.split(LEADS).nth(1).unwrap().split_whitespace().next().unwrap();
    job.step(address, 2, 50);
    etcd.kill();
    job.wait("launcher", "training continues, and nothing else changes until it is back");
    let step = job.step(address, 2, 0);
    job.step(address, 2, step + 20);
    kill(eventually(|| child_with(launcher.id(), "LOCAL_RANK=1")));
    job.wait("launcher", "nothing changes until it can");
    etcd.restart();
    job.step(address, 1, step + 21);
    job.wait("launcher", " is back");
    signal(launcher.id(), "INT");
    assert_eq!(finish(launcher).code, Some(130), "{}", job.said("launcher"));
}

/// A server that answers everything with this.
fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

/// The error of a training with this store, and its hint.
fn refused(folder: &Folder, store: &str) -> [String; 2] {
    let size = ["--ranks", "1:2", "--store", store];
    let mut command = folder.command(&train_arguments(&[&FLAGS[..], &size].concat()));
    let ended = finish(command.env("THINWIRE_TOKEN", TOKEN).spawn().unwrap());
    let hint = ended.stderr.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
    [ended.error().to_owned(), hint.to_owned()]
}

#[test]
fn what_is_no_etcd_is_refused_in_one_line() {
    let folder = Folder::new("no-etcd");
    let free = format!("127.0.0.1:{}", free_port());
    let [error, hint] = refused(&folder, &format!("etcd://{free}/j"));
    assert_eq!(error, format!("error: cannot reach etcd at {free}: connection refused"));
    assert_eq!(
        hint,
        "hint: check that etcd runs at this address, and that this machine can reach it"
    );
    let answers = [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found",
            "is no etcd of version 3.4 or later: it answers 404",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "does not answer as etcd does"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n}{}", "does not answer as etcd does"),
        ("SSH-2.0-OpenSSH_9\r\n", "does not speak HTTP"),
        (
            "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
            "is for TLS only",
        ),
    ];
    for (answer, what) in answers {
        let [error, hint] = refused(&folder, &format!("etcd://{}/j", server(answer)));
        assert!(error.contains(what) && !hint.is_empty(), "{error} {hint}");
    }
    let size = ["--ranks", "1:2", "--store", "etcd://127.0.0.1:1/j"];
    let ended = folder.train(&[&FLAGS[..], &size].concat());
    let said = "error: no token for a job that meets at etcd://127.0.0.1:1/j";
    assert_eq!(ended.error(), said);
}

#[test]
fn an_etcd_that_wants_users_or_tls_is_refused_in_one_line() {
    let folder = Folder::new("locked");
    let Some(etcd) = Etcd::start(&folder) else { return };
    let steps = [
        ("auth/user/add", r#"{"name":"root","password":"x"}"#),
        ("auth/role/add", r#"{"name":"root"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/enable", "{}"),
    ];
    for (path, body) in steps {
        let answer = etcd.post(path, body).unwrap();
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    }
    let [error, hint] = refused(&folder, &etcd.store("j"));
    assert!(error.contains("asks for a user"), "{error}");
    assert!(hint.contains("without authentication"), "{hint}");
    drop(etcd);
    let folder = Folder::new("tls");
    let etcd = Etcd::of_scheme(&folder, "https").unwrap();
    let [error, hint] = refused(&folder, &etcd.store("j"));
    assert!(error.contains("TLS") || hint.contains("TLS"), "{error} {hint}");
}

#[test]
fn operators_find_the_coordinator_through_the_store() {
    let Some((job, _etcd)) = Job::new("operator") else { return };
    let launcher = job.launcher("launcher", &LONG);
    job.step(&job.store, 2, 1);
    let operate = |arguments: &[&str]| {
        let mut command: Command =
            job.folder.command(&[arguments, &["--store", &job.store]].concat());
        finish(command.env("THINWIRE_TOKEN", TOKEN).spawn().unwrap()).done()
    };
    assert!(operate(&["top"]).contains("2 of 4 ranks"));
    operate(&["resize", "1"]);
    job.step(&job.store, 1, 2);
    signal(launcher.id(), "INT");
    assert_eq!(finish(launcher).code, Some(130), "{}", job.said("launcher"));
}
