//! Elastic trainings of real processes: ranks are killed, leave and join, and every row is learnt once.

mod support;

use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::{Ended, Folder, eventually, finish, kill, train_arguments};
use thinwire_job::elastic::{Authority, Coordinator, Event, Operator, Options, Seat};

/// Long enough for any epoch to begin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const STEPS: &str = "1200";
/// The batch of 4 rows does not divide among three ranks.
const FLAGS: [&str; 8] =
    ["--steps", STEPS, "--codec", "none", "--checkpoint-dir", "none", "--sample-bytes", "0"];

/// A coordinator in this process, and the events that it tells of.
struct Job {
    coordinator: Coordinator,
    events: Receiver<Event>,
    folder: Folder,
}

impl Job {
    fn new(name: &str, min: u32, max: u32) -> Job {
        let (sender, events) = channel();
        let options = Options::new(Authority::Saved, min, max);
        let tell = move |event: &Event| drop(sender.send(event.clone()));
        let coordinator = Coordinator::bind("127.0.0.1:0", "", options, None, tell).unwrap();
        Job { coordinator, events, folder: Folder::new(name) }
    }

    fn member(&self, flags: &[&str]) -> Child {
        let seat = Seat::new(self.coordinator.address(), "").unwrap();
        let mut command = self.folder.command(&train_arguments(flags));
        command.envs(seat.variables()).spawn().unwrap()
    }

    /// Waits for the begin of an epoch of so many ranks; returns its first step.
    fn epoch(&self, ranks: u64) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let event = self.events.recv_timeout(deadline - Instant::now()).expect("an epoch");
            if event.json["event"] == "started" && event.json["ranks"] == ranks {
                return event.json["step"].as_u64().unwrap();
            }
        }
    }

    /// Waits until some member has done so many steps.
    fn step(&self, least: u64) {
        let mut operator = Operator::connect(&self.coordinator.address(), "", PATIENCE).unwrap();
        eventually(|| {
            let status: serde_json::Value =
                serde_json::from_str(&operator.status().unwrap()).unwrap();
            let members = status["members"].as_array().unwrap();
            members.iter().any(|member| member["step"].as_u64() >= Some(least)).then_some(())
        });
    }
}

fn terminate(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
}

/// The training losses that rank 0 has printed.
fn losses(ended: Ended) -> Vec<f64> {
    let json = ended.json();
    let all = json[0]["losses"].as_array().unwrap();
    all.iter().map(|point| point["value"].as_f64().unwrap()).collect()
}

/// Losses are those of one rank with the same rows in every step: a row that is lost or learnt twice makes
/// all steps after it others.
fn assert_same_rows(folder: &Folder, found: &[f64]) {
    let flags = [&FLAGS[..], &["--ranks", "1", "--json"]].concat();
    let alone = losses(folder.train(&flags));
    assert_eq!(alone.len(), found.len());
    let differ = |(one, other): (&f64, &f64)| (one - other).abs();
    let mean = alone.iter().zip(found).map(differ).sum::<f64>() / alone.len() as f64;
    let shifted = alone[1..].iter().zip(found).map(differ).sum::<f64>() / alone.len() as f64;
    assert!(mean < shifted / 10.0, "losses differ by {mean}, with other rows by {shifted}");
}

#[test]
fn a_killed_rank_costs_no_row_and_its_successor_joins() {
    let job = Job::new("elastic-killed", 1, 3);
    let flags = [&FLAGS[..], &["--json"]].concat();
    let mut members: Vec<Child> = (0..3).map(|_| job.member(&flags)).collect();
    assert_eq!(job.epoch(3), 0);
    job.step(200);
    let victim = members.remove(1);
    kill(victim.id());
    assert_eq!(finish(victim).code, None);
    let step = job.epoch(2);
    assert!(step >= 200, "{step}");
    members.push(job.member(&flags));
    job.epoch(3);
    let ended: Vec<Ended> = members.into_iter().map(finish).collect();
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let mut first: Vec<Ended> = ended.into_iter().filter(|it| !it.stdout.is_empty()).collect();
    assert_eq!(first.len(), 1, "one rank prints");
    let first = first.remove(0);
    assert!(first.stderr.contains("epoch 2: 2 ranks; step "), "{}", first.stderr);
    assert!(first.stderr.contains("epoch 3: 3 ranks, 1 of them new; step "), "{}", first.stderr);
    assert_same_rows(&job.folder, &losses(first));
}

#[test]
fn a_rank_that_is_told_to_end_leaves_and_the_others_go_on() {
    let job = Job::new("elastic-left", 1, 2);
    let flags = [&FLAGS[..], &["--json"]].concat();
    let (goes, stays) = (job.member(&flags), job.member(&flags));
    job.epoch(2);
    job.step(100);
    terminate(&goes);
    let left = finish(goes);
    assert_eq!(left.code, Some(0), "{}", left.stderr);
    assert!(left.stdout.is_empty(), "{}", left.stdout);
    job.epoch(1);
    let ended = finish(stays);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Who began is rank 0 or was rank 1, and then knows the steps since it is alone only as rank 0.
    assert_same_rows(&job.folder, &losses(ended));
}

#[test]
fn a_process_of_another_training_is_refused_and_the_job_goes_on() {
    let job = Job::new("elastic-refused", 1, 2);
    let flags = [&FLAGS[..], &["--json"]].concat();
    let member = job.member(&flags);
    job.epoch(1);
    let other = [&flags[..], &["--seed", "9"]].concat();
    let refused = finish(job.member(&other));
    assert!(refused.error().contains("seed"), "{}", refused.stderr);
    let codec = [&flags[..2], &["--codec", "int8", "--checkpoint-dir", "none"]].concat();
    let refused = finish(job.member(&codec));
    assert!(refused.error().contains("codec"), "{}", refused.stderr);
    let ended = finish(member);
    assert_eq!(losses(ended).len(), STEPS.parse::<usize>().unwrap());
}

#[test]
fn who_joins_a_resumed_training_may_find_a_newer_checkpoint() {
    let job = Job::new("elastic-resumed", 1, 2);
    let kept = ["--checkpoint-dir", "kept", "--codec", "none", "--sample-bytes", "0"];
    let first = [&kept[..], &["--steps", "20", "--ranks", "1"]].concat();
    job.folder.train(&first).done();
    let flags =
        [&kept[..], &["--resume", "kept", "--checkpoint-every", "50", "--steps", STEPS, "--json"]];
    let flags = flags.concat();
    let member = job.member(&flags);
    assert_eq!(job.epoch(1), 0);
    job.step(150);
    let joiner = job.member(&flags);
    assert!(job.epoch(2) >= 150);
    let ended = [finish(member), finish(joiner)];
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
}
