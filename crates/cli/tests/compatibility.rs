//! Files that version 0.1 wrote continue where they were, or are refused with both versions: `testdata/version-0.1/origin.sh` has the commands.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::Folder;

const SHORT: [&str; 10] = [
    "--data",
    "text.txt",
    "--link",
    "none",
    "--report",
    "none",
    "--json",
    "--codec",
    "int8",
    "--sample-bytes=0",
];

/// Returns a file of version 0.1.
fn old(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/version-0.1").join(name)
}

/// Returns a scratch folder with the data of these files.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    fs::copy(old("text.txt"), folder.path().join("text.txt")).unwrap();
    folder
}

fn values(run: &Value, field: &str) -> Vec<f64> {
    run[field].as_array().unwrap().iter().map(|point| point["value"].as_f64().unwrap()).collect()
}

/// Returns the losses of a training of version 0.1.
fn losses(name: &str) -> Vec<f64> {
    values(&serde_json::from_str(&fs::read_to_string(old(name)).unwrap()).unwrap(), "losses")
}

fn assert_close(found: &[f64], expected: &[f64]) {
    // Products of matrices are rounded otherwise on other processors.
    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
    let is_close = found.len() == expected.len() && found.iter().zip(expected).all(close);
    assert!(is_close, "{found:?}, expected {expected:?}");
}

#[test]
fn checkpoints_go_on() {
    let folder = folder("compatibility-checkpoints");
    let places = ["--checkpoint-dir", "none", "--ranks", "2", "--validation-batches", "0"];
    for (checkpoint, before) in
        [("checkpoints/step-000002", "train.json"), ("planned/step-000002", "planned.json")]
    {
        let checkpoint = old(checkpoint);
        let flags = ["train", "--resume", checkpoint.to_str().unwrap()];
        let codec = if before == "train.json" { &SHORT[..] } else { &SHORT[..7] };
        let json = folder.run(&[&flags[..], codec, &places].concat()).json();
        assert_close(&values(&json[0], "losses"), &losses(before)[2..]);
    }
}

#[test]
fn plans_are_trained_alike() {
    let folder = folder("compatibility-plans");
    let plan = old("plan.toml");
    let flags = ["train", "--plan", plan.to_str().unwrap(), "--checkpoint-dir", "none"];
    let steps = ["--ranks", "2", "--steps", "4", "--validation-batches", "0", "--sample-bytes=0"];
    let json = folder.run(&[&flags[..], &SHORT[..7], &steps].concat()).json();
    assert_close(&values(&json[0], "losses"), &losses("planned.json"));
}

#[test]
fn snapshots_of_servers_are_restored() {
    let folder = folder("compatibility-snapshots");
    let snapshots = old("snapshots");
    let flags = ["train", "--mode", "server", "--servers", "1", "--ranks", "1", "--steps", "2"];
    let model = ["--width", "2", "--layers", "1", "--heads", "1", "--context", "8", "--batch", "4"];
    let places = ["--optimizer", "adam:lr=0.01", "--checkpoint-dir", "none"];
    let from = ["--restore", snapshots.to_str().unwrap(), "--validation-batches", "0"];
    let ended =
        folder.run(&[&flags[..], &model, &places, &from, &SHORT[..7], &SHORT[9..]].concat());
    let said = "snapshot-000001, taken after step 2, in 8 shards";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert_eq!(values(&ended.json()[0], "losses").len(), 2);
}

#[test]
fn graphs_are_read_and_their_trainings_go_on() {
    let folder = folder("compatibility-graphs");
    let graph = old("graph.graph");
    let graph = graph.to_str().unwrap();
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let before = |name| read(&fs::read_to_string(old(name)).unwrap());
    let info = folder.run(&["graph", "info", graph, "--json"]).json();
    for (field, expected) in before("info.json").as_object().unwrap() {
        assert_eq!(&info[0][field], expected, "{field}");
    }
    let checkpoint = old("graph-checkpoints/step-000001");
    let flags = ["graph", "train", graph, "--model", "gcn", "--hidden", "4", "--passes", "2"];
    let more =
        ["--batch", "16", "--json", "--ranks", "1", "--resume", checkpoint.to_str().unwrap()];
    let found = folder.run(&[&flags[..], &more].concat()).json();
    let second =
        |lines: &[Value]| lines.iter().find(|line| line["pass"] == 2).unwrap()["loss"].as_f64();
    let lines = fs::read_to_string(old("graph.json")).unwrap();
    let expected: Vec<Value> = lines.lines().map(read).collect();
    assert_close(&[second(&found).unwrap()], &[second(&expected).unwrap()]);
}

#[test]
fn states_of_coordinators_are_refused_with_both_versions() {
    let folder = folder("compatibility-states");
    let flags = ["coordinator", "--listen", "127.0.0.1:0", "--ranks", "1:3", "--state"];
    for (name, more) in
        [("coordinator.state", &[][..]), ("coordinator-servers.state", &["--servers"])]
    {
        // A coordinator makes a lock beside its state.
        let state = folder.path().join(name);
        fs::copy(old(name), &state).unwrap();
        let before = fs::read(&state).unwrap();
        let ended = folder.run(&[&flags[..], &[state.to_str().unwrap()], more].concat());
        let said = format!(
            "error: reading {}: coordinator state of version 1, expected 2",
            state.display()
        );
        assert_eq!(ended.error(), said);
        assert_eq!(fs::read(&state).unwrap(), before, "a refused state stays as it is");
    }
}
