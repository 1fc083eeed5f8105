//! Training as a user sees it: every codec, one rank and several, resuming, sampling, comparing.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{Folder, SMALL};

/// Every tensor of a checkpoint: file, header without its free text, and bytes.
fn tensors(checkpoint: &Path) -> Vec<(PathBuf, Value, Vec<u8>)> {
    let files = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let mut tensors: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
            let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let mut header: Value = serde_json::from_slice(header).unwrap();
            header.as_object_mut().unwrap().remove("__metadata__");
            (PathBuf::from(path.file_name().unwrap()), header, data.to_vec())
        })
        .collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

fn losses(run: &Value) -> Vec<f64> {
    let points = run["losses"].as_array().unwrap();
    points.iter().map(|point| point["value"].as_f64().unwrap()).collect()
}

#[test]
fn every_codec_trains_and_sends_what_it_promises() {
    let folder = Folder::new("codecs");
    for (codec, least) in [
        ("none", 0.97),
        ("bf16", 1.8),
        ("int8", 3.2),
        ("topk:0.05", 4.0),
        ("powersgd:1", 1.5),
        ("auto", 0.97),
    ] {
        let flags = ["--codec", codec, "--steps", "6", "--json", "--checkpoint-dir", "none"];
        let [run] = &folder.train(&flags).json()[..] else { panic!("one line per training") };
        assert_eq!(run["codec"], codec);
        let losses = losses(run);
        assert_eq!(losses.len(), 6);
        assert!(losses[5] < losses[0], "{codec}: {losses:?}");
        let compression = run["raw_bytes_per_step"].as_f64().unwrap()
            / run["sent_bytes_per_step"].as_f64().unwrap();
        assert!(compression > least, "{codec}: {compression}");
        for figure in ["step_s", "compute_s", "tokens_per_s", "validation_loss", "loss"] {
            assert!(run[figure].as_f64().unwrap() > 0.0, "{codec}: {figure} is {}", run[figure]);
        }
        assert!(!run["buckets"].as_array().unwrap().is_empty());
    }
}

#[test]
fn one_rank_learns_as_two_do() {
    let folder = Folder::new("ranks");
    let losses = ["1", "2", "4"].map(|ranks| {
        let flags = [
            "--codec",
            "none",
            "--steps",
            "20",
            "--json",
            "--checkpoint-dir",
            "none",
            "--ranks",
            ranks,
        ];
        losses(&folder.train(&flags).json()[0])
    });
    for other in &losses[1..] {
        for (one, several) in losses[0].iter().zip(other) {
            assert!((one - several).abs() < 1e-4, "{losses:?}");
        }
    }
}

#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    for (codec, warm_up) in [("int8", "0"), ("powersgd:1", "0"), ("powersgd:1", "6")] {
        let folder = Folder::new(&format!("resume-{}-{warm_up}", codec.replace(':', "-")));
        let codec = ["--codec", codec, "--warmup-steps", warm_up];
        let flags = ["--steps", "8", "--checkpoint-every", "4", "--checkpoint-dir", "whole"];
        folder.train(&[&codec[..], &flags].concat()).done();
        let whole = folder.path().join("whole");
        fs::create_dir(folder.path().join("half")).unwrap();
        fs::rename(whole.join("step-000004"), folder.path().join("half/step-000004")).unwrap();

        // The model's size, the batch and the seed come from the checkpoint.
        let resumed = ["train", "--data", "text.txt", "--link", "none"];
        let places = ["--resume", "half", "--checkpoint-dir", "half", "--report", "none"];
        folder.run(&[&resumed[..], &codec, &places[..]].concat()).done();
        let [half, whole] =
            [folder.path().join("half"), whole].map(|path| tensors(&path.join("step-000008")));
        assert_eq!(half.len(), 4);
        assert!(half == whole, "{codec:?}");
    }
}

#[test]
fn what_was_learnt_can_be_sampled_in_another_world_and_damage_is_found() {
    let folder = Folder::new("sample");
    let output = folder.run(
        &[&["train", "--data", "text.txt", "--link", "100mbit", "--steps", "5"][..], &SMALL[..]]
            .concat(),
    );
    assert!(output.stderr.contains("emulated by a token bucket"), "{}", output.stderr);
    let table = output.done();
    for row in ["validation loss", "tokens/s", "raw over sent", "floor: compute alone", "  wait"] {
        assert!(table.lines().any(|line| line.starts_with(row)), "{row} in {table}");
    }
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("http"));

    let sample =
        |seed| folder.run(&["sample", "--prompt", "12 b", "--length", "20", "--seed", seed]).done();
    assert!(sample("1").starts_with("12 b"));
    assert_eq!(sample("1"), sample("1"));
    let json = folder.run(&["sample", "thinwire-checkpoints", "--length", "5", "--json"]).json();
    assert_eq!(json[0]["step"], 5);

    // Three ranks of another world cannot share 4 rows; one and four go on where two were.
    let go_on = |ranks| {
        let flags =
            ["train", "--resume", "thinwire-checkpoints", "--data", "text.txt", "--ranks", ranks];
        folder.run(&[&flags[..], &["--steps", "7", "--report", "none", "--json"]].concat())
    };
    assert!(go_on("3").error().contains("batch of 4 rows does not divide among 3 ranks"));
    assert_eq!(losses(&go_on("4").json()[0]).len(), 2);

    let model = folder.path().join("thinwire-checkpoints/step-000007/model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&model, bytes).unwrap();
    let ended = folder.run(&["sample"]);
    assert!(
        ended.error().contains("corrupt checkpoint") && ended.error().contains("model.safetensors")
    );
    let more = ["train", "--resume", "thinwire-checkpoints", "--data", "text.txt", "--steps", "9"];
    let ended = folder.run(&more);
    assert!(ended.error().contains("corrupt checkpoint"), "{}", ended.error());
    assert!(ended.hint().contains("earlier checkpoint"));
}

/// Where version 0.1.0 was after two steps, when a model handed its gradients over in another order
/// and checkpoints did not say which: `thinwire train --width 2 --layers 1 --heads 1 --context 8
/// --batch 4 --codec int8 --steps 4 --checkpoint-every 2`.
const EARLIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/step-000002");
/// The losses of its other two steps.
const LATER: [f64; 2] = [5.528649091720581, 5.534955024719238];

#[test]
fn a_checkpoint_of_an_earlier_version_goes_on_and_writes() {
    let folder = Folder::new("earlier");
    let flags = ["train", "--resume", EARLIER, "--data", "text.txt", "--link", "none", "--json"];
    let places = ["--codec", "int8", "--report", "none", "--checkpoint-dir", "none"];
    let ended = folder.run(&[&flags[..], &places].concat());
    let said = "the checkpoint's gradients were in other buckets: how they travel is chosen anew";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let found = losses(&ended.json()[0]);
    assert_eq!(found.len(), LATER.len());
    for (found, expected) in found.iter().zip(LATER) {
        assert!((found - expected).abs() < 1e-5, "{found}, expected {expected}");
    }
    assert!(folder.run(&["sample", EARLIER, "--prompt", "12 b"]).done().starts_with("12 b"));
}

#[test]
fn codecs_are_compared_on_the_same_data() {
    let folder = Folder::new("compare");
    let flags = ["compare", "--codecs", "none,int8,auto", "--data", "text.txt", "--steps", "4"];
    let runs = folder.run(&[&flags[..], &SMALL[..], &["--json"]].concat()).json();
    assert_eq!(
        runs.iter().map(|run| run["codec"].as_str().unwrap()).collect::<Vec<_>>(),
        ["none", "int8", "auto"]
    );
    // All start from the same model and see the same first batch.
    assert_eq!(losses(&runs[0])[0], losses(&runs[1])[0]);
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("none, int8, auto") && page.contains("seconds of training"));
}
