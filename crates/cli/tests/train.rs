//! Training as a user sees it: every codec, one rank and several, resuming, sampling, comparing.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{Folder, SMALL, Talker, signal, train_arguments};

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
fn a_text_too_short_to_hold_some_out_is_said() {
    let folder = Folder::new("short");
    fs::write(folder.path().join("text.txt"), [b'a'; 80]).unwrap();
    let flags = ["--ranks", "1", "--steps", "1", "--sample-bytes", "0", "--checkpoint-dir", "none"];
    let said = |more: &[&str]| folder.train(&[&flags[..], more].concat()).stderr;
    let line = "no validation: the held-out data does not fill a batch of 4\n";
    assert!(said(&[]).contains(line));
    assert!(!said(&["--validation-batches", "0"]).contains(line));
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

/// Batches differ by less; with a shorter warm-up losses rose by 3.
const RISE_MAX: f64 = 0.35;

#[test]
fn losses_of_the_default_model_do_not_jump() {
    let folder = Folder::new("jumps");
    let flags = ["train", "--ranks", "1", "--codec", "none", "--report", "none", "--json"];
    let places = ["--checkpoint-dir", "none", "--validation-batches", "0", "--sample-bytes", "0"];
    let runs = folder.run(&[&flags[..], &places, &["--steps", "24"]].concat()).json();
    let losses = losses(&runs[0]);
    let mut least = losses[0];
    for (step, loss) in losses.iter().enumerate() {
        assert!(loss - least < RISE_MAX, "step {step}: {losses:?}");
        least = least.min(*loss);
    }
    assert!(least < losses[0] - 1.5, "{losses:?}");
}

#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    for (codec, others) in [
        ("int8", &["--feedback", "ef21", "--algorithm", "two-shot", "--bucket-bytes", "2048"][..]),
        (
            "powersgd:1",
            &["--momentum-correction", "0.9", "--seed", "3", "--codec-warmup-steps", "0"],
        ),
        ("powersgd:1", &["--codec-warmup-steps", "6"]),
    ] {
        let name = format!("resume-{}-{}", codec.replace(':', "-"), others.len());
        let folder = Folder::new(&name);
        let flags = ["--codec", codec, "--steps", "8", "--checkpoint-every", "4"];
        folder.train(&[&flags[..], others, &["--checkpoint-dir", "whole"]].concat()).done();
        let whole = folder.path().join("whole");
        fs::create_dir(folder.path().join("half")).unwrap();
        fs::rename(whole.join("step-000004"), folder.path().join("half/step-000004")).unwrap();

        // Everything that shapes the run comes from the checkpoint.
        let resumed = ["train", "--link", "none", "--report", "none", "--json"];
        let places = ["--resume", "half", "--checkpoint-dir", "half"];
        let ended = folder.run(&[&resumed[..], &places[..]].concat());
        assert!(!ended.stderr.contains("not as in the checkpoint"), "{}", ended.stderr);
        assert_eq!(ended.json()[0]["codec"], codec);
        let [half, whole] =
            [folder.path().join("half"), whole].map(|path| tensors(&path.join("step-000008")));
        assert_eq!(half.len(), 4);
        assert!(half == whole, "{codec}");
    }
}

#[test]
fn what_is_not_as_in_the_checkpoint_is_said_in_one_line() {
    let folder = Folder::new("otherwise");
    folder.train(&["--codec", "int8", "--steps", "2"]).done();
    let resumed = ["train", "--resume", "thinwire-checkpoints", "--link", "none", "--report"];
    let others = ["none", "--steps", "4", "--seed", "2", "--codec", "int4", "--ranks", "1"];
    let ended = folder.run(&[&resumed[..], &others].concat());
    let expected = "not as in the checkpoint: steps 4 instead of 2, seed 2 instead of 1, \
                    ranks 1 instead of 2, codec int4 instead of int8";
    assert!(ended.stderr.lines().any(|line| line == expected), "{}", ended.stderr);
    ended.done();
    // The text is found where it was; where it is not, that is said.
    fs::rename(folder.path().join("text.txt"), folder.path().join("moved.txt")).unwrap();
    let ended = folder.run(&[&resumed[..], &["none", "--steps", "6"]].concat());
    assert!(ended.error().contains("cannot read text.txt"), "{}", ended.error());
    assert!(ended.hint().contains("--data"), "{}", ended.hint());
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

    // Five ranks cannot share 4 rows; three and one continue where two were.
    let go_on = |ranks| {
        let flags =
            ["train", "--resume", "thinwire-checkpoints", "--data", "text.txt", "--ranks", ranks];
        folder.run(&[&flags[..], &["--steps", "7", "--report", "none", "--json"]].concat())
    };
    assert!(go_on("5").error().contains("batch of 4 rows for 5 ranks, expected 5 or more"));
    assert_eq!(losses(&go_on("3").json()[0]).len(), 2);

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
    let said =
        "the checkpoint has other buckets of gradients: how gradients are sent is chosen again";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let said =
        "does not tell how gradients were sent: training continues with codec int8, algorithm";
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
    let printed = folder.run(&[&flags[..], &SMALL[..], &["--json"]].concat()).done();
    let runs: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        runs.iter().map(|run| run["codec"].as_str().unwrap()).collect::<Vec<_>>(),
        ["none", "int8", "auto"]
    );
    // All start from the same model and see the same first batch.
    assert_eq!(losses(&runs[0])[0], losses(&runs[1])[0]);
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("none, int8, auto") && page.contains("seconds of training"));
    // The records make the same table and the same figures again, and the curves of two files one page.
    fs::write(folder.path().join("three.jsonl"), &printed).unwrap();
    fs::write(folder.path().join("int8.jsonl"), printed.lines().nth(1).unwrap()).unwrap();
    let report = ["report", "three.jsonl", "int8.jsonl", "--report", "all.html"];
    let table = folder.run(&report).done();
    let words: Vec<&str> = table.lines().next().unwrap().split("  ").collect();
    let names: Vec<&str> =
        words.iter().map(|word| word.trim()).filter(|it| !it.is_empty()).collect();
    assert_eq!(names, ["codec", "three none", "three int8", "three auto", "int8"], "{table}");
    assert_eq!(folder.run(&[&report[..], &["--json"]].concat()).json()[..3], runs[..]);
    let page = fs::read_to_string(folder.path().join("all.html")).unwrap();
    assert!(page.contains("What differs") && page.contains("Time of a step"), "{page}");
    let ended = folder.run(&["report", "text.txt"]);
    assert!(ended.error().starts_with("error: text.txt, line 1, is no record of a training: "));
    assert_eq!(ended.hint(), "hint: thinwire train --json > FILE writes one");
}

#[test]
fn every_mode_trains_and_sends_less_than_gradients() {
    let folder = Folder::new("modes");
    for (mode, least) in [
        ("local:4", 8.0),
        ("diloco:4,fragments=2,delay=1", 8.0),
        ("sma:0.5,every=2", 4.0),
        ("pair:3", 2.5),
        ("delayed:2", 2.0),
    ] {
        let flags = ["--mode", mode, "--steps", "24", "--json", "--checkpoint-dir", "none"];
        let ended = folder.train(&[&flags[..], &["--ranks", "3"]].concat());
        assert!(ended.stderr.contains(&format!("in mode {}", &mode[..4])), "{}", ended.stderr);
        let run = &ended.json()[0];
        let losses = losses(run);
        assert_eq!(losses.len(), 24);
        assert!(losses[23] < losses[0] - 0.2, "{mode}: {losses:?}");
        assert!(run["mode"].as_str().unwrap().starts_with(&mode[..4]));
        let sent = run["sent_bytes_per_step"].as_f64().unwrap();
        let compression = run["raw_bytes_per_step"].as_f64().unwrap() / sent;
        assert!(compression > least, "{mode}: {compression}");
    }
}

#[test]
fn a_training_by_rounds_goes_on_bit_for_bit() {
    for mode in ["diloco:3,fragments=2,delay=2,lr=0.5", "pair:2", "sma:0.2", "delayed:2"] {
        let folder = Folder::new(&format!("rounds-{}", &mode[..4].replace(':', "-")));
        let flags = ["--mode", mode, "--steps", "12", "--checkpoint-every", "5"];
        folder.train(&[&flags[..], &["--checkpoint-dir", "whole"]].concat()).done();
        let whole = folder.path().join("whole");
        fs::create_dir(folder.path().join("half")).unwrap();
        fs::rename(whole.join("step-000005"), folder.path().join("half/step-000005")).unwrap();
        let resumed = ["train", "--link", "none", "--report", "none", "--json", "--resume", "half"];
        let same = ["--checkpoint-dir", "half", "--checkpoint-every", "5"];
        let ended = folder.run(&[&resumed[..], &same].concat());
        assert!(!ended.stderr.contains("dropped"), "{}", ended.stderr);
        assert_eq!(ended.json()[0]["steps"], 7, "{mode}");
        let [half, whole] =
            [folder.path().join("half"), whole].map(|path| tensors(&path.join("step-000012")));
        assert_eq!(half.len(), 4);
        // What pairs exchange depends on the speed of ranks.
        assert!(half == whole || mode == "pair:2", "{mode}");
        if mode != "sma:0.2" {
            continue;
        }
        let fewer = ["--steps", "14", "--ranks", "1"];
        let ended = folder.run(&[&resumed[..], &fewer, &["--checkpoint-dir", "none"]].concat());
        let dropped = "the progress of ranks 1 and above since their last rounds is dropped";
        assert!(ended.stderr.contains(dropped), "{}", ended.stderr);
        ended.done();
        // Another mode begins with the model.
        let other = ["--steps", "14", "--mode", "local:3", "--checkpoint-dir", "none"];
        let ended = folder.run(&[&resumed[..], &other].concat());
        let dropped = "all ranks begin with its model, and changes not exchanged yet are dropped";
        assert!(ended.stderr.contains(dropped), "{}", ended.stderr);
        ended.done();
        let others = ["--steps", "16", "--mode", "all-reduce", "--codec", "none"];
        let ended = folder.run(&[&resumed[..], &others].concat());
        assert!(ended.stderr.contains("the checkpoint is of"), "{}", ended.stderr);
        ended.done();
    }
}

#[test]
fn a_training_by_momenta_goes_on_bit_for_bit() {
    for optimizer in ["onebit-adam", "zero-one-adam"] {
        momenta_go_on(optimizer);
    }
}

fn momenta_go_on(optimizer: &str) {
    let folder = Folder::new(optimizer);
    let flags = ["--optimizer", optimizer, "--steps", "160", "--checkpoint-every", "40"];
    let ended = folder.train(&[&flags[..], &["--json", "--checkpoint-dir", "whole"]].concat());
    assert_eq!(ended.json()[0]["codec"], "onebit");
    let whole = folder.path().join("whole");
    let owes = |tensors: &[(PathBuf, Value, Vec<u8>)]| {
        let names = tensors.iter().flat_map(|(_, header, _)| header.as_object().unwrap().keys());
        names.filter(|name| name.starts_with("residual.")).count() > 0
    };
    let [first, last] = ["step-000040", "step-000160"].map(|name| tensors(&whole.join(name)));
    // The variance has settled in between.
    assert!(owes(&first) == (optimizer == "zero-one-adam") && owes(&last));
    let resumed = ["train", "--link", "none", "--report", "none", "--checkpoint-every", "40"];
    for early in ["step-000040", "step-000120"] {
        let half = folder.path().join(early);
        fs::create_dir(&half).unwrap();
        fs::rename(whole.join(early), half.join(early)).unwrap();
        let same = ["--resume", early, "--checkpoint-dir", early];
        let ended = folder.run(&[&resumed[..], &same].concat());
        assert!(!ended.stderr.contains("dropped"), "{}", ended.stderr);
        ended.done();
        assert!(tensors(&half.join("step-000160")) == last, "{early}");
    }
    let other = ["--resume", "step-000120", "--steps", "200", "--optimizer", "adamw"];
    let ended = folder.run(&[&resumed[..], &other, &["--checkpoint-dir", "none"]].concat());
    let refused = format!("--optimizer adamw, but the training of the checkpoint had {optimizer}");
    assert!(ended.stderr.contains(&refused), "{}", ended.stderr);
    assert_eq!(ended.code, Some(2));
}

#[test]
fn modes_that_cannot_be_are_refused() {
    let folder = Folder::new("no-modes");
    for (flags, error) in [
        (&["--mode", "diloco:0"][..], "mode diloco has '0' steps"),
        (&["--mode", "gossip"], "unknown mode 'gossip'"),
        (&["--mode", "diloco:4096,fragments=4096"], "4096 fragments for parameters of"),
        (
            &["--mode", "delayed:2", "--codec", "auto"],
            "codec auto cannot be used with mode delayed:2",
        ),
        (
            &["--mode", "delayed:2", "--ranks", "1:2"],
            "--mode delayed:2 cannot be used in an elastic job",
        ),
        (
            &["--mode", "delayed:2", "--parallel", "auto"],
            "--mode delayed:2 cannot be used with a plan",
        ),
        (&["--mode", "local:2", "--parallel", "auto"], "--mode local:2 cannot be used with a plan"),
        (
            &["--mode", "local:2", "--codec-warmup-steps", "3"],
            "--codec-warmup-steps 3 cannot be used with --mode local:2",
        ),
        (
            &["--mode", "pair", "--algorithm", "ring"],
            "--algorithm ring cannot be used with --mode pair",
        ),
        (&["--mode", "pair", "--codec", "int8"], "codec int8 cannot be used with mode pair"),
        (
            &["--mode", "pair", "--codec", "int8", "--ranks", "1:2"],
            "error: codec int8 cannot be used with mode pair, expected none",
        ),
        (&["--optimizer", "lamb"], "no optimiser 'lamb', expected one of sgd"),
        (&["--optimizer", "adam:lr=1"], "--optimizer adam:lr=1,beta1=0.9"),
        (
            &["--optimizer", "onebit-adam", "--codec", "auto"],
            "--optimizer onebit-adam cannot be used with codec auto: it measures gradients, not momenta",
        ),
        (
            &["--optimizer", "zero-one-adam", "--codec-warmup-steps", "3"],
            "--optimizer zero-one-adam cannot be used with --codec-warmup-steps",
        ),
        (
            &["--optimizer", "zero-one-adam", "--ranks", "1:2"],
            "--optimizer zero-one-adam cannot be used in an elastic job",
        ),
        (
            &["--optimizer", "onebit-adam", "--parallel", "auto"],
            "--optimizer onebit-adam cannot be used with a plan",
        ),
        (
            &["--optimizer", "onebit-adam", "--mode", "local:2"],
            "--optimizer onebit-adam cannot be used with --mode local:2, expected all-reduce",
        ),
        (
            &["--optimizer", "onebit-adam", "--momentum-correction", "0.9"],
            "--optimizer onebit-adam cannot be used with --momentum-correction 0.9",
        ),
        (
            &["--optimizer", "onebit-adam", "--mode", "server"],
            "--optimizer onebit-adam cannot be used with servers: they have rules of their own",
        ),
        (
            &["--mode", "local:2", "--momentum-correction", "0.9"],
            "--momentum-correction 0.9 cannot be used with --mode local:2",
        ),
        (
            &["--mode", "diloco:4,fragments=4,delay=2", "--codec", "auto"],
            "codec auto cannot be used with mode diloco:4",
        ),
    ] {
        let ended = folder.train(&[&["--steps", "4", "--checkpoint-dir", "none"], flags].concat());
        assert!(ended.stderr.contains(error), "{flags:?}: {}", ended.stderr);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    }
}

#[test]
fn a_signal_ends_rounds_on_all_ranks_after_one_step() {
    let folder = Folder::new("rounds-signal");
    let flags = ["--mode", "diloco:5,delay=2", "--steps", "20000", "--checkpoint-every", "20000"];
    let arguments = train_arguments(&flags);
    let mut training = Talker::of(folder.command(&arguments).spawn().unwrap());
    training.said("/20000");
    signal(training.id(), "TERM");
    let ended = training.end();
    assert!(ended.stderr.contains("stopped by SIGTERM after step"), "{}", ended.stderr);
    let kept = fs::read_dir(folder.path().join("thinwire-checkpoints")).unwrap();
    assert_eq!(kept.filter(|it| it.as_ref().unwrap().path().is_dir()).count(), 1);
}
