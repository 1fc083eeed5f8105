//! Checkpoints of trainings in a bucket of an object store.

mod support;

use std::process::{Child, Command};

use support::{
    Ended, Folder, cluster, eventually, finish, kill, losses, rank_of, signal, train_arguments,
};
use thinwire_testkit::objects::ObjectStore;

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
    assert!(ended.stderr.contains("has not given back s3://bucket/run"), "{}", ended.stderr);
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
    let ended = train(&folder, &store, &[&["--steps", "2", "--resume", "s3://bucket/gone"]]);
    let expected = "error: no checkpoint at s3://bucket/gone: s3://bucket/gone/manifest.json: 404 ";
    assert!(ended.error().starts_with(expected), "{}", ended.stderr);
}

#[test]
fn a_bucket_has_one_training_whose_last_checkpoint_outlives_the_store() {
    let (folder, store) = (Folder::new("bucket-taken"), ObjectStore::start());
    let launcher = start(&folder, &store, &[&ENDLESS, &BUCKET]);
    wait_for_a_checkpoint(&store, "000500");
    let other = train(&folder, &store, &[&["--steps", "2"], &BUCKET]);
    let expected = "another training writes its checkpoints to s3://bucket/run";
    assert!(other.error().ends_with(expected), "{}", other.stderr);
    store.set_away(true);
    signal(launcher.id(), "TERM");
    let ended = finish(launcher);
    assert!(ended.error().contains("the object store answers 503"), "{}", ended.stderr);
    let (_, path) = ended.error().split_once("; the checkpoint is in ").expect("a path");
    let path = folder.path().join(path.strip_suffix(" instead").unwrap());
    assert!(path.join("manifest.json").is_file());
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
