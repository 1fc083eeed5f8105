//! Policies as a user sees them: the batch, the number of ranks, and what is refused.

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{Folder, SMALL, Talker, train_arguments};

/// Rows per step of the small training.
const BATCH: u64 = 4;

/// The batches that policies have asked for, each with the step after which.
fn batches(run: &Value) -> Vec<[u64; 2]> {
    let all = run["adjusted"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |one: &Value| [&one["step"], &one["batch"]].map(|it| it.as_u64().unwrap());
    all.iter().map(of).collect()
}

/// Steps from one round to the next of the mode that is tried, and those after which ranks know what was told.
const EVERY: u64 = 4;
const LAG: u64 = 16;

/// The step from which on a batch is in force that was asked for after a step.
fn in_force(mode: &str, after: u64) -> u64 {
    match mode {
        // It is told with the next step.
        "all-reduce" => after + 1,
        // At the end of the first round after the ranks have heard of it.
        _ => (after + 1 + LAG).next_multiple_of(EVERY),
    }
}

/// Steps in which as many rows are read as in `steps` steps of the first batch.
fn expected_steps(mode: &str, steps: u64, adjusted: &[[u64; 2]]) -> u64 {
    let (mut read, mut batch, mut step) = (0, BATCH, 0);
    while read < steps * BATCH {
        if let Some([_, next]) = adjusted.iter().find(|[after, _]| in_force(mode, *after) == step) {
            batch = *next;
        }
        (read, step) = (read + batch, step + 1);
    }
    step
}

fn model(checkpoint: &Path) -> Vec<u8> {
    fs::read(checkpoint.join("model.safetensors")).unwrap()
}

#[test]
fn the_batch_grows_and_as_many_rows_are_read() {
    for mode in ["all-reduce", "local:4"] {
        the_batch_grows(mode);
    }
}

fn the_batch_grows(mode: &str) {
    let folder = Folder::new(&format!("noise-scale-{}", &mode[..3]));
    let policy = "noise-scale:max=8,every=10,rate=linear";
    let flags = ["--policy", policy, "--steps", "480", "--codec", "int8", "--lr", "0.01"];
    let flags = [&flags[..], &["--mode", mode]].concat();
    let kept = ["--json", "--checkpoint-every", "20", "--checkpoint-dir", "whole"];
    let ended = folder.train(&[&flags[..], &kept].concat());
    let line = "batch 8, learning rate × 2.00 from step";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
    let run = &ended.json()[0];
    let adjusted = batches(run);
    let steps = run["losses"].as_array().unwrap().len() as u64;
    assert_eq!(steps, expected_steps(mode, 480, &adjusted), "{adjusted:?}");
    let [[after, 8]] = adjusted[..] else { panic!("{adjusted:?}") };
    // A resumed training has the batch of its checkpoint, and reads what is left.
    let last_kept = (steps - 1) / 20 * 20;
    assert!(last_kept >= in_force(mode, after), "{last_kept} {after}");
    let whole = folder.path().join("whole");
    fs::create_dir(folder.path().join("half")).unwrap();
    let name = format!("step-{last_kept:06}");
    fs::rename(whole.join(&name), folder.path().join("half").join(&name)).unwrap();
    let resumed = ["train", "--link", "none", "--report", "none", "--json", "--resume", "half"];
    let same = ["--checkpoint-dir", "half", "--policy", policy];
    let ended = folder.run(&[&resumed[..], &same].concat());
    let run = &ended.json()[0];
    assert_eq!(run["losses"].as_array().unwrap().len() as u64, steps - last_kept);
    assert_eq!(batches(run), [[0; 2]; 0]);
    let name = format!("step-{steps:06}");
    assert!(model(&folder.path().join("half").join(&name)) == model(&whole.join(&name)));
    // Another first batch is another training.
    let other = ["--batch", "6", "--steps", "500"];
    let ended = folder.run(&[&resumed[..], &other].concat());
    let dropped = "a policy had changed the batch from 4 to 8 rows; it is 6 again";
    assert!(ended.stderr.contains(dropped), "{}", ended.stderr);
    ended.done();
}

#[test]
fn ranks_leave_when_they_cost_too_much_and_come_back() {
    for mode in ["all-reduce", "diloco:3,fragments=2,delay=1"] {
        ranks_come_and_go(mode);
    }
}

fn ranks_come_and_go(mode: &str) {
    let folder = Folder::new(&format!("price-{}", &mode[..3]));
    let price = folder.path().join("price");
    fs::write(&price, "0.9\n").unwrap();
    let policy = format!("price:{},max=0.5,every=5", price.display());
    let flags = ["--policy", &policy, "--ranks", "1:2", "--steps", "100000", "--codec", "int8"];
    let arguments = [&flags[..], &["--checkpoint-dir", "none", "--mode", mode]].concat();
    let arguments = train_arguments(&arguments);
    let mut training = Talker::of(folder.command(&arguments).spawn().unwrap());
    training.said("epoch 1: 2 ranks");
    training.said("1 rank wanted after step");
    training.said("epoch 2 after step");
    fs::write(&price, "0.2\n").unwrap();
    training.said("2 ranks wanted after step");
    training.said("epoch 3 after step");
    support::signal(training.id(), "TERM");
    training.end();
}

#[test]
fn policies_that_cannot_be_followed_are_refused() {
    let folder = Folder::new("no-policies");
    for (flags, error) in [
        (&["--policy", "noise"][..], "unknown policy 'noise'"),
        (
            &["--policy", "noise-scale:max=7"],
            "has no effect on a batch of 4 rows: it doubles the batch, to at most 7 rows",
        ),
        (
            &["--policy", "deadline:60"],
            "--policy deadline:60 cannot be used in a job with a fixed number of ranks",
        ),
        (
            &["--policy", "price:gone,max=1", "--ranks", "1:2"],
            "--policy price:gone,max=1 cannot be followed: gone: No such file",
        ),
        (
            &["--policy", "wait:max=0.3", "--codec", "int8"],
            "--policy wait:max=0.3 cannot be used with codec int8",
        ),
        (
            &["--policy", "wait:max=0.3", "--mode", "local:4"],
            "--policy wait:max=0.3 cannot be used with --mode local:4: this mode has a named codec",
        ),
        (
            &["--policy", "noise-scale:max=64", "--parallel", "auto"],
            "--policy noise-scale:max=64 cannot be used with a plan",
        ),
        (
            &["--policy", "noise-scale:max=64", "--mode", "server"],
            "--policy noise-scale:max=64 cannot be used in a training with servers",
        ),
    ] {
        let ended = folder.train(&[&["--steps", "4", "--checkpoint-dir", "none"], flags].concat());
        assert!(ended.stderr.contains(error), "{flags:?}: {}", ended.stderr);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    }
}

#[test]
fn another_mode_is_proposed_where_no_codec_hides_what_is_sent() {
    let folder = Folder::new("advice");
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "500kbit"];
    let flags = ["--mode", "auto", "--steps", "60", "--checkpoint-dir", "none"];
    let ended = folder.run(&[&fixed[..], &SMALL, &flags].concat());
    let line = "no codec within the error budget hides the exchange: ranks wait for ";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
    assert!(ended.stderr.contains("--mode diloco:"), "{}", ended.stderr);
    ended.done();
}
