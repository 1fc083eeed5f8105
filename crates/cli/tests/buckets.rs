//! Checkpoints of trainings in a bucket of an object store.

#![cfg(feature = "s3")]

mod support;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::time::Duration;

use support::{
    Ended, Folder, SILENCE, Talker, cluster, eventually, finish, finish_all, kill, losses, rank_of,
    signal, train_arguments,
};
use thinwire_job::elastic::{Coordinator, CoordinatorMode, Event, JobAddress, Options};
use thinwire_testkit::objects::{Fault, ObjectStore};

const BUCKET: [&str; 2] = ["--checkpoint-dir", "s3://bucket/run"];
const ENDLESS: [&str; 4] = ["--steps", "100000000", "--checkpoint-every", "500"];

fn command(folder: &Folder, store: &ObjectStore, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    command.envs(store.variables()).env("THINWIRE_LEASE_S", "2");
    command
}

fn start(folder: &Folder, store: &ObjectStore, flags: &[&[&str]]) -> Child {
    command(folder, store, &train_arguments(&flags.concat())).spawn().unwrap()
}

fn train(folder: &Folder, store: &ObjectStore, flags: &[&[&str]]) -> Ended {
    finish(start(folder, store, flags))
}

fn wait_for_a_checkpoint(store: &ObjectStore, step: &str) {
    let manifest = format!("run/step-{step}/manifest.json");
    eventually(|| store.keys().contains(&manifest).then_some(()));
}

#[test]
fn a_killed_training_goes_on_from_a_bucket_as_one_with_a_folder_that_nobody_killed() {
    let (folder, store) = (Folder::new("bucket"), ObjectStore::start());
    let flags = ["--codec", "int8", "--steps", "200", "--checkpoint-every", "20", "--json"];
    let whole = losses(folder.train(&[&flags[..], &["--checkpoint-dir", "whole"]].concat()));
    let launcher = start(&folder, &store, &[&flags, &BUCKET]);
    let ranks = [0, 1].map(|rank| rank_of(launcher.id(), rank));
    wait_for_a_checkpoint(&store, "000020");
    kill(launcher.id());
    ranks
        .into_iter()
        .for_each(|rank| drop(Command::new("kill").args(["-9", &rank.to_string()]).status()));
    finish(launcher);
    // Objects that no manifest names, as of one who was killed while it wrote.
    let torn = "run/step-000199/0123456789abcdef/model.safetensors";
    store.objects().insert(torn.to_owned(), Vec::new());
    let ended = train(&folder, &store, &[&flags, &BUCKET, &["--resume", "s3://bucket/run"]]);
    assert!(ended.stderr.contains("has not released s3://bucket/run"), "{}", ended.stderr);
    let resumed = losses(ended);
    assert!(resumed.len() < 200);
    assert_eq!(resumed[..], whole[200 - resumed.len()..]);
    let objects = store.objects();
    assert!(!objects.contains_key(torn) && !objects.contains_key("run/.thinwire-job"));
    let mut files = 0;
    for entry in std::fs::read_dir(folder.path().join("whole/step-000200")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let of_step = |key: &&String| key.starts_with("run/step-000200/") && key.ends_with(name);
        let found: Vec<_> = objects.keys().filter(of_step).collect();
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(name == "manifest.json" || objects[found[0]] == std::fs::read(&path).unwrap());
        files += 1;
    }
    assert!(files >= 4);
    drop(objects);
    let sample = ["sample", "s3://bucket/run/step-000200", "--length", "3"];
    finish(command(&folder, &store, &sample).spawn().unwrap()).done();
}

#[test]
fn a_bucket_that_cannot_be_used_is_named_before_the_first_step() {
    let (folder, store) = (Folder::new("bucket-refused"), ObjectStore::start());
    let with = |place: &str, (name, value): (&str, &str)| {
        let flags = ["--steps", "2", "--checkpoint-dir", place];
        let mut command = command(&folder, &store, &train_arguments(&flags));
        let ended = finish(command.env(name, value).spawn().unwrap());
        assert!(!ended.stderr.contains("step 1"), "{}", ended.stderr);
        (ended.error().to_owned(), ended.hint().to_owned())
    };
    let none = ("UNUSED", "");
    let (error, hint) = with("s3://bucket/run", ("AWS_ACCESS_KEY_ID", "other"));
    assert!(error.starts_with("error: cannot write checkpoints to s3://bucket/run: "), "{error}");
    assert!(error.ends_with("403 InvalidAccessKeyId: No such key."), "{error}");
    assert!(hint.contains("--checkpoint-dir"), "{hint}");
    assert!(with("s3://nothing/run", none).0.contains("404 NoSuchBucket"));
    let (error, hint) = with("s3://bucket/run", ("AWS_SECRET_ACCESS_KEY", ""));
    assert_eq!(error, "error: s3://bucket/run: no credentials");
    assert!(hint.contains("AWS_SECRET_ACCESS_KEY"), "{hint}");
    assert!(with("gs://bucket/run", none).0.contains("and to s3://BUCKET/PREFIX"));
    let (error, hint) = with("s3://bucket/run", ("THINWIRE_LEASE_S", "0"));
    assert_eq!(error, "error: THINWIRE_LEASE_S is 0 s, expected at least 1 s");
    assert!(hint.contains("unset the variable"), "{hint}");
    for name in ["THINWIRE_LEASE_S", "THINWIRE_RESCUE_AFTER_S"] {
        let (error, _) = with("s3://bucket/run", (name, "a while"));
        assert!(error.contains(&format!("{name} is 'a while', expected seconds")), "{error}");
    }
    let ended = train(&folder, &store, &[&["--steps", "2", "--resume", "s3://bucket/gone"]]);
    let expected = "error: no checkpoint at s3://bucket/gone: s3://bucket/gone/manifest.json: 404 ";
    assert!(ended.error().starts_with(expected), "{}", ended.stderr);
}

#[test]
fn a_bucket_has_one_training_whose_last_checkpoint_outlives_the_store() {
    let (folder, store) = (Folder::new("bucket-taken"), ObjectStore::start());
    let patient = |flags: &[&str]| {
        let mut command = command(&folder, &store, &train_arguments(&[flags, &BUCKET].concat()));
        // On a busy machine an owner may be silent for long.
        command.env("THINWIRE_LEASE_S", "60").spawn().unwrap()
    };
    let launcher = patient(&ENDLESS);
    wait_for_a_checkpoint(&store, "000500");
    let other = finish(patient(&["--steps", "2"]));
    let expected = "another training writes its checkpoints to s3://bucket/run";
    assert!(other.error().ends_with(expected), "{}", other.stderr);
    store.set_fault(Fault::Away);
    signal(launcher.id(), "TERM");
    let ended = finish(launcher);
    assert!(ended.error().contains("the object store answers 503"), "{}", ended.stderr);
    assert!(rescued(&folder, &ended).join("manifest.json").is_file());
}

/// Returns the folder that an error names.
fn rescued(folder: &Folder, ended: &Ended) -> PathBuf {
    let (_, path) = ended.error().split_once("; the checkpoint is in ").expect("a path");
    folder.path().join(path.strip_suffix(" instead").unwrap())
}

#[test]
fn a_store_that_fails_costs_a_checkpoint_and_one_that_is_silent_ends_no_training_too_late() {
    let (folder, store) = (Folder::new("bucket-faults"), ObjectStore::start());
    let mut command = command(&folder, &store, &train_arguments(&[&ENDLESS[..], &BUCKET].concat()));
    // The usual time for a last checkpoint: a launcher kills ranks that need too long for all.
    command.env_remove("THINWIRE_RESCUE_AFTER_S").env("THINWIRE_LEASE_S", "60");
    let mut launcher = Talker::of(command.spawn().unwrap());
    wait_for_a_checkpoint(&store, "000500");
    for file in [".safetensors", "manifest.json"] {
        store.set_fault(Fault::Denied(file));
        let warning = launcher.said("the training continues without this checkpoint");
        assert!(warning.contains("the object store answers 503"), "{warning}");
        store.set_fault(Fault::None);
        whole(&folder, &store);
    }
    let before = store.keys().len();
    eventually(|| (store.keys().len() > before).then_some(()));
    store.set_fault(Fault::Silent);
    signal(launcher.id(), "TERM");
    let ended = launcher.end();
    assert!(ended.error().contains("no answer within 5 s"), "{}", ended.stderr);
    let path = rescued(&folder, &ended);
    let sample = ["sample", path.to_str().unwrap(), "--length", "3"];
    folder.run(&sample).done();
}

/// Makes sure that the newest checkpoint in the bucket loads.
fn whole(folder: &Folder, store: &ObjectStore) {
    let sample = ["sample", "s3://bucket/run", "--length", "3"];
    finish(command(folder, store, &sample).spawn().unwrap()).done();
}

#[test]
fn a_training_waits_for_a_bucket_and_says_why_and_not_for_a_corrupt_checkpoint() {
    let (folder, store) = (Folder::new("bucket-late"), ObjectStore::start());
    train(&folder, &store, &[&["--steps", "2"], &BUCKET]).done();
    let on = ["train", "--report", "none", "--link", "none", "--resume", "s3://bucket/run"];
    let on = [&on[..], &BUCKET, &["--steps", "3", "--checkpoint-wait"]].concat();
    let resumed = |wait: &'static str| {
        command(&folder, &store, &[&on[..], &[wait]].concat()).spawn().unwrap()
    };
    store.set_fault(Fault::Away);
    let ended = finish(resumed("1"));
    assert!(ended.error().contains("no checkpoint at s3://bucket/run: "), "{}", ended.stderr);
    assert!(ended.error().contains("the object store answers 503"), "{}", ended.stderr);
    let mut late = Talker::of(resumed("200"));
    let told = late.said("waiting up to 200 s: no checkpoint at s3://bucket/run: ");
    assert!(told.ends_with("the object store answers 503"), "{told}");
    assert!(store.keys().iter().all(|key| !key.contains(".probe-")));
    store.set_fault(Fault::None);
    late.end().done();
    let manifest = "run/step-000003/manifest.json";
    store.objects().get_mut(manifest).expect("a checkpoint").truncate(9);
    let ended = finish(resumed("200"));
    assert!(ended.error().contains("corrupt checkpoint: "), "{}", ended.stderr);
}

#[test]
fn elastic_and_planned_trainings_use_a_bucket() {
    let (folder, store) = (Folder::new("bucket-kinds"), ObjectStore::start());
    std::fs::write(folder.path().join("cluster.toml"), cluster(2)).unwrap();
    let parts =
        ["--parallel", "semi", "--pin", "block.*.mlp.up: n=tp", "--cluster", "cluster.toml"];
    let has = |step: &str| store.keys().contains(&format!("{step}/manifest.json"));
    train(&folder, &store, &[&parts, &["--steps", "2"], &BUCKET]).done();
    assert!(has("run/step-000002"));
    let on = ["train", "--resume", "s3://bucket/run", "--steps", "3", "--report", "none"];
    let on = [&on[..], &["--link", "none"], &BUCKET].concat();
    finish(command(&folder, &store, &on).spawn().unwrap()).done();
    assert!(has("run/step-000003"));
    let elastic = ["--ranks", "1:2", "--steps", "4", "--checkpoint-every", "2"];
    train(&folder, &store, &[&elastic, &["--checkpoint-dir", "s3://bucket/elastic"]]).done();
    assert!(has("elastic/step-000002") && has("elastic/step-000004"));
    assert!(store.keys().iter().all(|key| !key.ends_with(".thinwire-job")));
}

#[test]
fn a_process_joins_an_elastic_training_whose_bucket_is_away() {
    let (folder, store) = (Folder::new("bucket-joined"), ObjectStore::start());
    let (sender, events) = channel();
    let options = Options { silence: SILENCE, ..Options::new(CoordinatorMode::Saved, 1, 2) };
    let tell = move |event: &Event| drop(sender.send(event.clone()));
    let coordinator = Coordinator::bind("127.0.0.1:0", "", options, None, tell).unwrap();
    let member = || {
        let job_address = JobAddress::new(coordinator.address(), "").unwrap();
        let flags = train_arguments(&[&ENDLESS[..], &BUCKET].concat());
        command(&folder, &store, &flags).envs(job_address.variables()).spawn().unwrap()
    };
    let first = member();
    wait_for_a_checkpoint(&store, "000500");
    store.set_fault(Fault::Away);
    let second = member();
    let next = || events.recv_timeout(Duration::from_secs(300)).expect("an epoch of two ranks");
    let is_joined = |event: Event| event.json["event"] == "started" && event.json["ranks"] == 2;
    while !is_joined(next()) {}
    store.set_fault(Fault::None);
    let members = [first, second];
    members.iter().for_each(|member| signal(member.id(), "TERM"));
    finish_all(members);
    whole(&folder, &store);
}
