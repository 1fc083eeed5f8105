//! Elastic trainings of real processes: ranks are killed, leave and join, and every row is learnt once.

mod support;

use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::{
    Ended, Folder, SILENCE, assert_same_rows, assert_same_rows_from, child_with, eventually,
    finish, finish_all, kill, losses, signal, train_arguments,
};
use thinwire_job::elastic::{Coordinator, CoordinatorMode, Event, JobAddress, Operator, Options};
use thinwire_train::checkpoint::Checkpoint;
use thinwire_wire::Rank;

/// Long enough for any epoch to begin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Enough for a process that is started beside them to join.
const STEPS: &str = "6000";
/// The batch of 4 rows does not divide among three ranks. A low learning rate keeps the rounding of sums over
/// other numbers of ranks from growing over the steps.
const FLAGS: [&str; 10] = [
    "--steps",
    STEPS,
    "--lr",
    "0.0002",
    "--codec",
    "none",
    "--checkpoint-dir",
    "none",
    "--sample-bytes",
    "0",
];

/// A coordinator in this process, and the events that it tells of.
struct Job {
    coordinator: Coordinator,
    events: Receiver<Event>,
    folder: Folder,
}

impl Job {
    fn new(name: &str, min: u32, max: u32) -> Job {
        let (sender, events) = channel();
        let options =
            Options { silence: SILENCE, ..Options::new(CoordinatorMode::Saved, min, max) };
        let tell = move |event: &Event| drop(sender.send(event.clone()));
        let coordinator = Coordinator::bind("127.0.0.1:0", "", options, None, tell).unwrap();
        Job { coordinator, events, folder: Folder::new(name) }
    }

    fn member(&self, flags: &[&str]) -> Child {
        self.start("", &train_arguments(flags))
    }

    fn start(&self, token: &str, arguments: &[&str]) -> Child {
        let job_address = JobAddress::new(self.coordinator.address(), token).unwrap();
        let mut command = self.folder.command(arguments);
        command.envs(job_address.variables()).spawn().unwrap()
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

    /// Kills one of three members after a step that its job has done, and starts another one, which joins: the two that
    /// are left continue from that step or a later one.
    fn replace(&self, members: &mut Vec<Child>, flags: &[&str], done: u64) {
        let victim = members.remove(1);
        kill(victim.id());
        assert_eq!(finish(victim).code, None);
        let step = self.epoch(2);
        assert!(step >= done, "{step}");
        members.push(self.member(flags));
        assert!(self.epoch(3) >= step);
    }

    /// Waits until `thinwire top` shows a word, and returns all of it.
    fn top(&self, word: &str) -> String {
        let address = self.coordinator.address();
        eventually(|| {
            let shown = self.folder.run(&["top", "--coordinator", &address]).done();
            shown.contains(word).then_some(shown)
        })
    }

    /// Returns the most steps that any member has done.
    fn steps(&self) -> Option<u64> {
        let mut operator = Operator::connect(&self.coordinator.address(), "", PATIENCE).unwrap();
        let status: serde_json::Value = serde_json::from_str(&operator.status().unwrap()).unwrap();
        status["members"].as_array().unwrap().iter().filter_map(|it| it["step"].as_u64()).max()
    }

    /// Waits until some member has done so many steps.
    fn step(&self, least: u64) {
        eventually(|| (self.steps() >= Some(least)).then_some(()));
    }
}

/// Steps of the checkpoints in a folder, the newest last.
fn checkpoints(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let complete = entries.filter(|entry| entry.path().join("manifest.json").is_file());
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let step = |name: String| name.strip_prefix("step-").and_then(|step| step.parse().ok());
    let mut steps: Vec<u64> = complete.map(name).filter_map(step).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_killed_rank_costs_no_row_and_its_successor_joins() {
    let job = Job::new("elastic-killed", 1, 3);
    let flags = [&FLAGS[..], &["--json"]].concat();
    let mut members: Vec<Child> = (0..3).map(|_| job.member(&flags)).collect();
    // The first who are there may begin alone.
    let begun = job.epoch(3);
    job.step(begun + 200);
    let shown = job.top("samples/s");
    for expected in
        [" ranks, 1 to 3 allowed", "of 6\u{2009}000, loss ", "running", "█", "not measured"]
    {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    job.replace(&mut members, &flags, begun + 200);
    let ended = finish_all(members);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let mut first: Vec<Ended> = ended.into_iter().filter(|it| !it.stdout.is_empty()).collect();
    assert_eq!(first.len(), 1, "one rank prints");
    let first = first.remove(0);
    assert!(first.stderr.contains(": 2 ranks; "), "{}", first.stderr);
    assert!(first.stderr.contains(": 3 ranks, 1 of them new; "), "{}", first.stderr);
    assert_same_rows(&job.folder, &FLAGS, &losses(first));
}

#[test]
fn a_spare_says_so_and_begins_anew_where_the_state_is_lost() {
    let job = Job::new("elastic-spare", 1, 1);
    let member = job.member(&FLAGS);
    job.epoch(1);
    job.step(10);
    let spare = job.member(&FLAGS);
    assert!(job.top(" spare ").contains("1 of 1 ranks"));
    kill(member.id());
    assert_eq!(finish(member).code, None);
    job.epoch(1);
    job.step(1);
    signal(spare.id(), "TERM");
    let ended = finish(spare);
    for line in [
        "the job has the 1 rank that it wants: this process is a spare",
        "epoch 2 begins at step 0: this job has no checkpoint",
    ] {
        assert!(ended.stderr.contains(line), "{line}: {}", ended.stderr);
    }
    let told: Vec<String> = job.events.try_iter().map(|event| event.text).collect();
    assert!(told.iter().any(|text| text.starts_with("steps are lost: ")), "{told:?}");
}

/// A rank gets a signal, and the others train on.
fn leave(name: &str, number: &str) {
    let job = Job::new(name, 1, 2);
    let flags = [&FLAGS[..], &["--json"]].concat();
    let goes = job.member(&flags);
    job.epoch(1);
    job.step(10);
    let stays = job.member(&flags);
    job.epoch(2);
    job.step(100);
    signal(goes.id(), number);
    let left = finish(goes);
    assert_eq!(left.code, Some(0), "{}", left.stderr);
    assert!(left.stdout.is_empty(), "{}", left.stdout);
    for line in [
        " waits for the next epoch of the job at 127.0.0.1:",
        "as rank ",
        "left the job after step ",
    ] {
        assert!(left.stderr.contains(line), "{line}: {}", left.stderr);
    }
    job.epoch(1);
    let ended = finish(stays);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // It has joined late and is rank 0 now: it counts all steps, and has the losses of those that it took.
    let line: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(line["steps"].to_string(), STEPS);
    let (missed, found) = (line["losses"][0]["step"].as_u64().unwrap() as usize, losses(ended));
    assert!(missed >= 10 && missed + found.len() == STEPS.parse::<usize>().unwrap());
    assert_same_rows_from(&job.folder, &FLAGS, (missed, &found));
}

#[test]
fn a_rank_that_is_told_to_end_leaves_and_the_others_go_on() {
    leave("elastic-left", "TERM");
}

#[test]
fn a_rank_that_is_interrupted_leaves_and_the_others_go_on() {
    leave("elastic-interrupted", "INT");
}

const KEPT: [&str; 6] = ["--checkpoint-dir", "kept", "--codec", "none", "--sample-bytes", "0"];
const ENDLESS: [&str; 2] = ["--steps", "10000000"];

#[test]
fn ranks_that_all_leave_save_their_last_step() {
    let job = Job::new("elastic-all-left", 1, 2);
    let flags = [&KEPT[..], &ENDLESS].concat();
    let members = [job.member(&flags), job.member(&flags)];
    job.epoch(2);
    job.step(50);
    members.iter().for_each(|member| signal(member.id(), "TERM"));
    let ended = finish_all(members);
    assert!(ended.iter().all(|it| matches!(it.code, Some(0 | 143))), "{ended:?}");
    assert!(checkpoints(&job.folder.path().join("kept")).pop() >= Some(50), "{ended:?}");
    assert!(!job.events.try_iter().any(|event| event.json["event"] == "complete"));
}

#[test]
fn ranks_that_are_too_few_save_their_last_step() {
    let folder = Folder::new("elastic-too-few");
    let flags = [&KEPT[..], &ENDLESS, &["--ranks", "2:2", "--checkpoint-every", "20"]].concat();
    let launcher = folder.command(&train_arguments(&flags)).spawn().unwrap();
    let kept = folder.path().join("kept");
    eventually(|| (!checkpoints(&kept).is_empty()).then_some(()));
    kill(child_with(launcher.id(), "LOCAL_RANK=1").unwrap());
    let ended = finish(launcher);
    assert!(ended.error().contains("1 rank is left, expected at least 2"), "{}", ended.stderr);
    let said = ended.stderr.split("nobody is known to continue: stopped after step ").nth(1);
    let step = said.and_then(|said| said.split_whitespace().next()?.parse::<u64>().ok());
    assert_eq!(checkpoints(&kept).pop(), step, "{}", ended.stderr);
    let more = (step.unwrap() + 1).to_string();
    folder
        .train(&[&KEPT[..], &["--resume", "kept", "--ranks", "1", "--steps", &more]].concat())
        .done();
}

#[test]
fn a_checkpoint_that_cannot_be_written_ends_no_rank() {
    let job = Job::new("elastic-unsaved", 1, 2);
    let kept = job.folder.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("step-000050"), "in the way").unwrap();
    let flags = [&KEPT[..], &["--steps", "100", "--checkpoint-every", "25"]].concat();
    let ended = finish_all([job.member(&flags), job.member(&flags)]);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let said: Vec<_> = ended.iter().flat_map(|ended| ended.stderr.lines()).collect();
    let warnings: Vec<_> =
        said.iter().filter(|line| line.contains("warning: saving step 50")).collect();
    assert_eq!(warnings.len(), 1, "{said:?}");
    assert!(warnings[0].contains("kept/"), "{warnings:?}");
    assert_eq!(checkpoints(&kept), [25, 75, 100]);
}

#[test]
fn a_process_of_another_training_is_refused_and_the_job_goes_on() {
    let job = Job::new("elastic-refused", 1, 2);
    std::fs::write(job.folder.path().join("other.txt"), "another text ".repeat(1000)).unwrap();
    let flags = [&KEPT[..], &ENDLESS].concat();
    let member = job.member(&flags);
    job.epoch(1);
    let refused = |name: &str, flag: &str, value: &str| {
        let mut changed = train_arguments(&flags);
        match changed.iter().position(|known| *known == flag) {
            Some(place) => changed[place + 1] = value,
            None => changed.extend([flag, value]),
        }
        let ended = finish(job.start("", &changed));
        let said = format!("ranks disagree on {name}: this rank has ");
        assert!(ended.error().contains(&said), "{}", ended.stderr);
        let told = job.events.try_iter().find(|event| event.json["event"] == "refused");
        let told = told.expect("the coordinator tells it as well").text;
        assert!(told.contains(&format!("ranks disagree on {name}: it has ")), "{told}");
    };
    refused("seed", "--seed", "9");
    refused("codec", "--codec", "int8");
    refused("data", "--data", "other.txt");
    refused("model", "--width", "32");
    refused("--checkpoint-dir", "--checkpoint-dir", "elsewhere");
    refused("--checkpoint-dir", "--checkpoint-dir", "none");
    let stranger = finish(job.start("another token", &train_arguments(&flags)));
    assert!(stranger.error().contains("token"), "{}", stranger.stderr);
    let done = eventually(|| job.steps());
    job.step(done + 10);
    signal(member.id(), "TERM");
    assert_eq!(finish(member).code, Some(143));
}

#[test]
fn who_joins_a_resumed_training_may_find_a_newer_checkpoint() {
    let job = Job::new("elastic-resumed", 1, 2);
    let first = [&KEPT[..], &["--steps", "20", "--ranks", "1"]].concat();
    job.folder.train(&first).done();
    let flags =
        [&KEPT[..], &["--resume", "kept", "--checkpoint-every", "50", "--steps", STEPS, "--json"]];
    let flags = flags.concat();
    let member = job.member(&flags);
    assert_eq!(job.epoch(1), 0);
    job.step(150);
    let joiner = job.member(&flags);
    assert!(job.epoch(2) >= 150);
    let ended = finish_all([member, joiner]);
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let said = &ended[0].stderr;
    assert!(said.contains("epoch 1 continues from step 20: kept/"), "{said}");
}

/// The last validation loss of a training by rounds, whose ranks all have the same parameters in its last checkpoint.
fn united(folder: &Folder, ended: Vec<Ended>, step: u64) -> f64 {
    assert!(ended.iter().all(|ended| ended.code == Some(0)), "{ended:?}");
    let mut printed = ended.into_iter().filter(|it| !it.stdout.is_empty());
    let run = &printed.next().expect("rank 0 prints").json()[0];
    let checkpoint = folder.path().join(format!("kept/step-{step:06}"));
    let checkpoint = Checkpoint::open(&checkpoint).unwrap();
    let alike = |rank| {
        let mut tensors = checkpoint.exchange(Rank(rank)).unwrap();
        let of_rank = ["residual.", ".mean@", ".square@", ".updates"];
        tensors.retain(|name, _| !of_rank.iter().any(|part| name.contains(part)));
        tensors
    };
    let first = alike(0);
    assert!(first.keys().any(|name| name.starts_with("own.")), "{:?}", first.keys());
    assert!((1..3).all(|rank| alike(rank) == first));
    let value = &run["validation"].as_array().unwrap().last().unwrap()["value"];
    value.as_f64().expect("it is finite")
}

#[test]
fn ranks_of_rounds_are_killed_and_join_and_all_end_with_the_same_parameters() {
    let flags = [&KEPT[..2], &["--mode", "diloco:8,fragments=2,delay=3", "--codec", "int8"]];
    let flags = [&flags.concat()[..], &["--sample-bytes", "0", "--lr", "0.001", "--json"]].concat();
    let job = Job::new("elastic-rounds", 1, 3);
    // Enough steps for a rank to start and join among them.
    let trained = [&flags[..], &["--steps", "5000", "--checkpoint-every", "1000"]].concat();
    let mut members: Vec<Child> = (0..3).map(|_| job.member(&trained)).collect();
    let begun = job.epoch(3);
    job.step(begun + 100);
    job.replace(&mut members, &trained, begun + 100);
    let loss = united(&job.folder, finish_all(members), 5000);
    let calm = Folder::new("elastic-rounds-calm");
    let alone = calm.train(&[&trained[..], &["--ranks", "3"]].concat());
    let expected = united(&calm, vec![alone], 5000);
    assert!((loss / expected - 1.0).abs() < 0.1, "{loss}, {expected} without a kill");
    // Two ranks continue from the checkpoint of three, and a third one joins.
    let resumed = [&flags[..], &["--resume", "kept", "--steps", "10000"]].concat();
    let job = Job { folder: job.folder, ..Job::new("elastic-rounds-again", 1, 3) };
    let mut members = vec![job.member(&resumed), job.member(&resumed)];
    job.step(5001);
    members.push(job.member(&resumed));
    job.epoch(3);
    let ended = finish_all(members);
    let said = "epoch 1 continues from step 5000: kept/";
    assert!(ended.iter().any(|it| it.stderr.contains(said)), "{ended:?}");
    let after = united(&job.folder, ended, 10000);
    assert!(after < loss * 1.05, "{after}, {loss} before");
}

#[test]
fn a_rank_that_is_killed_in_an_exchange_of_a_pair_takes_nobody_along() {
    let flags = [&KEPT[..2], &["--mode", "pair", "--sample-bytes", "0", "--lr", "0.001"]].concat();
    let flags = [&flags[..], &["--steps", "3000", "--checkpoint-every", "1000", "--json"]].concat();
    let mut arguments = train_arguments(&flags);
    let link = arguments.iter().position(|it| *it == "--link").unwrap();
    // An exchange takes as long as many steps, so that one is nearly always on its way.
    arguments[link + 1] = "10mbit";
    let job = Job::new("elastic-pair", 1, 3);
    let mut members: Vec<Child> = (0..3).map(|_| job.start("", &arguments)).collect();
    let begun = job.epoch(3);
    job.step(begun + 100);
    kill(members.remove(1).id());
    assert!(job.epoch(2) >= begun + 100);
    members.push(job.start("", &arguments));
    job.epoch(3);
    united(&job.folder, finish_all(members), 3000);
}
