//! Training under a plan for the whole model, with real processes.

mod support;

use serde_json::Value;
use support::{Ended, Folder, SMALL, cluster, eventually, finish, kill, lives, rank_of};

const MODEL: &str = "gpt:layers=2,width=16,heads=2,vocabulary=256,positions=16";

/// A codec that has no name of its own.
const MINE: &str = "
codec mine
block 64
feedback
contraction 1 / elements
encode x:
    scale = mean(abs(x))
    emit f32 scale
    emit u1 x < 0
decode:
    scale = take f32
    yield select(take u1, -scale, scale)
";

/// A plan of the small model as text.
fn plan(folder: &Folder, ranks: usize) -> String {
    let cluster = cluster(ranks);
    std::fs::write(folder.path().join("cluster.toml"), cluster).unwrap();
    let flags = ["plan", "make", "--model", MODEL, "--sequence", "16", "--batch", "8"];
    let places = ["--cluster", "cluster.toml", "--precision", "single", "--output", "plan.toml"];
    folder.run(&[&flags[..], &places[..]].concat()).done();
    std::fs::read_to_string(folder.path().join("plan.toml")).unwrap()
}

/// The plan that cuts the batch alone, and so sums gradients once a step.
fn data_plan(folder: &Folder, ranks: usize) {
    plan(folder, ranks);
    let price = ["plan", "price", "--model", MODEL, "--sequence", "16", "--batch", "8"];
    let mesh = ranks.to_string();
    let data = ["--mesh", &mesh, "--cuts", "data", "--cluster", "cluster.toml"];
    folder.run(&[&price[..], &data, &["--output", "plan.toml"]].concat()).done();
}

fn train(folder: &Folder, flags: &[&str]) -> Ended {
    let fixed = ["train", "--plan", "plan.toml", "--data", "text.txt", "--report", "none"];
    folder.run(&[&fixed[..], &["--link", "none"], flags].concat())
}

fn losses(run: &Value) -> Vec<f64> {
    let points = run["losses"].as_array().unwrap();
    points.iter().map(|point| point["value"].as_f64().unwrap()).collect()
}

/// The plan under other words: each is replaced in every place.
fn rewrite(folder: &Folder, text: &str, changes: &[(&str, &str)]) {
    let changed = changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from} in {text}");
        text.replace(from, to)
    });
    std::fs::write(folder.path().join("plan.toml"), changed).unwrap();
}

#[test]
fn any_plan_learns_as_one_rank_does_and_sends_what_it_says() {
    let folder = Folder::new("planned");
    let run = || {
        let mut runs = train(&folder, &["--steps", "6", "--json"]).json();
        runs.remove(0)
    };
    plan(&folder, 1);
    let alone = losses(&run());
    assert!(alone[5] < alone[0], "{alone:?}");
    for count in [2, 4] {
        plan(&folder, count);
        let run = run();
        for (one, several) in alone.iter().zip(losses(&run)) {
            assert!((one - several).abs() < 1e-4, "{alone:?}, {:?}", losses(&run));
        }
        let ranks = run["planned"]["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), count);
        for rank in ranks {
            assert!(rank["counted_bytes"].as_u64() > Some(0), "{rank}");
            assert_eq!(rank["counted_bytes"], rank["predicted_bytes"], "{rank}");
            assert!(rank["busy_s"].as_f64() > Some(0.0), "{rank}");
        }
        assert_eq!(run["raw_bytes"], run["sent_bytes"], "{run}");
        assert!(run["planned"]["predicted_step_s"].as_f64() > Some(0.0));
    }
}

#[test]
fn a_checkpoint_loads_with_and_without_a_plan() {
    let folder = Folder::new("planned-either");
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "none", "--json"];
    let run = |flags: &[&str]| {
        let ended = folder.run(&[&fixed[..], &["--ranks", "2"], flags].concat());
        losses(&ended.json()[0])
    };
    let of_model = ["--model", MODEL, "--batch", "8", "--codec", "none", "--steps"];
    let straight = run(&[&of_model[..], &["9", "--checkpoint-dir", "none"]].concat());
    let mut found = run(&[&of_model[..], &["3", "--lr-warmup-steps", "40"]].concat());
    let resume = ["--resume", "thinwire-checkpoints", "--steps"];
    std::fs::write(folder.path().join("cluster.toml"), cluster(2)).unwrap();
    let planned = ["6", "--parallel", "data", "--cluster", "cluster.toml"];
    found.extend(run(&[&resume[..], &planned].concat()));
    let plain = ["9", "--parallel", "none", "--codec", "none"];
    found.extend(run(&[&resume[..], &plain[..]].concat()));
    assert_eq!(found.len(), straight.len());
    for (one, other) in found.iter().zip(&straight) {
        assert!((one - other).abs() < 0.02, "{found:?}, {straight:?}");
    }
    let refused = folder.run(&[&fixed[..], &resume, &plain, &["--pin", "block.*: b=dp"]].concat());
    let message = "--pin 'block.*: b=dp' cannot be used with --parallel none: it makes no plan";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
}

#[test]
fn what_ranks_did_when_is_told() {
    let folder = Folder::new("planned-times");
    let text = plan(&folder, 4);
    let count = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let fixed = ["train", "--plan", "plan.toml", "--data", "text.txt", "--link", "none"];
    let told = ["--steps", "3", "--report", "page.html", "--trace", "trace.jsonl"];
    folder.run(&[&fixed[..], &told[..]].concat()).done();
    let trace = std::fs::read_to_string(folder.path().join("trace.jsonl")).unwrap();
    let steps: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 3);
    for step in &steps {
        let passes = step["passes"].as_array().unwrap();
        for kind in ["forward", "backward"] {
            let of_kind = passes.iter().filter(|pass| pass["kind"] == kind).count() as u64;
            assert!(of_kind > 0 && of_kind.is_multiple_of(count("micro_batches")), "{step}");
        }
        let mut before_s = f64::NEG_INFINITY;
        for pass in passes {
            let [start_s, end_s, waited_s] =
                ["start_s", "end_s", "waited_s"].map(|name| pass[name].as_f64().unwrap());
            assert!(before_s <= start_s && start_s < end_s && end_s < 0.0, "{step}");
            assert!((0.0..=end_s - start_s).contains(&waited_s), "{step}");
            before_s = end_s;
        }
    }
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    let drawn = &page[page.find("aria-label=\"the last step\"").unwrap()..];
    for part in [">rank 0<", ">rank 3<", "forward of micro-batch 0, chunk 0 (", "optimiser ("] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
}

#[test]
fn steps_that_are_no_numbers_are_left_out_and_warned_of() {
    let folder = Folder::new("planned-nan");
    let text = plan(&folder, 2);
    rewrite(&folder, &text, &[("precision = \"single\"", "precision = \"mixed\"")]);
    let ended = train(&folder, &["--steps", "8", "--lr", "1e30", "--clip", "0"]);
    assert!(ended.stderr.contains("of 8 steps were skipped"), "{}", ended.stderr);
    assert!(ended.stderr.contains("plan was made for mixed precision"), "{}", ended.stderr);
    ended.done();
}

#[test]
fn gradients_of_a_plan_travel_by_any_codec() {
    let folder = Folder::new("planned-codecs");
    data_plan(&folder, 4);
    std::fs::write(folder.path().join("mine.codec"), MINE).unwrap();
    for flags in [
        &["--codec", "powersgd:1"][..],
        &["--codec", "int8", "--feedback", "ef21", "--bucket-bytes", "4096"],
        &["--codec", "topk:0.1", "--momentum-correction", "0.9", "--codec-warmup-steps", "2"],
        // Entropy-coded lengths are known only afterwards, and are predicted as expected.
        &["--codec", "auto:int8+int4"],
    ] {
        let flags = [&["--steps", "8", "--json", "--trace", "trace.jsonl"], flags].concat();
        let [run] = &train(&folder, &flags).json()[..] else { panic!("one line per training") };
        let losses = losses(run);
        assert!(losses[7] < losses[0], "{flags:?}: {losses:?}");
        assert!(!run["buckets"].as_array().unwrap().is_empty(), "{run}");
        for rank in run["planned"]["ranks"].as_array().unwrap() {
            assert_eq!(rank["counted_bytes"], rank["predicted_bytes"], "{flags:?}: {rank}");
        }
        // The exchange continues by the checkpoint, residuals included.
        let on = ["--resume", "thinwire-checkpoints", "--steps", "9", "--json"];
        let ended = train(&folder, &on);
        assert!(!ended.stderr.contains("dropped"), "{}", ended.stderr);
        assert_eq!(ended.json()[0]["codec"], run["codec"]);
        std::fs::remove_dir_all(folder.path().join("thinwire-checkpoints")).unwrap();
    }
}

#[test]
fn residuals_go_on_with_a_plan_and_without() {
    let folder = Folder::new("residuals-either-way");
    data_plan(&folder, 2);
    let codec = ["--codec", "topk:0.05", "--codec-warmup-steps", "0"];
    let steps = ["--steps", "16", "--checkpoint-every", "8", "--json"];
    let ended = train(&folder, &[&codec[..], &steps, &["--checkpoint-dir", "planned"]].concat());
    let whole = losses(&ended.json()[0]);
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "none"];
    let on = ["--resume", "planned/step-000008", "--parallel", "none", "--steps", "16", "--json"];
    let ended =
        folder.run(&[&fixed[..], &on, &codec[..2], &["--checkpoint-dir", "alone"]].concat());
    assert!(!ended.stderr.contains("dropped"), "{}", ended.stderr);
    // What is owed of topk:0.05 is most of the gradients: without it losses would be others.
    for (step, (on, whole)) in losses(&ended.json()[0]).iter().zip(&whole[8..]).enumerate() {
        assert!((on - whole).abs() < 2e-3, "step {step} after: {on}, uninterrupted {whole}");
    }
}

#[test]
fn what_a_plan_cannot_be_is_named() {
    let folder = Folder::new("planned-mistakes");
    let text = plan(&folder, 4);
    let error = |flags: &[&str]| {
        let ended = train(&folder, flags);
        (ended.error().to_owned(), ended.hint().to_owned())
    };
    let (found, hint) = error(&["--ranks", "2"]);
    assert_eq!(found, "error: plan.toml is for 4 ranks, but --ranks says 2");
    assert_eq!(hint, "hint: start 4 ranks, or make a plan for 2");
    let (found, _) = error(&["--width", "32"]);
    assert_eq!(
        found,
        "error: --width 32 cannot be used with --plan: the plan has its own model and batch"
    );
    for (flag, value) in [("--cluster", "cluster.toml"), ("--pin", "block.*.mlp.up: n=tp")] {
        let (found, hint) = error(&[flag, value]);
        assert!(found.starts_with(&format!("error: {flag} ")), "{found}");
        assert!(
            found.ends_with(" cannot be used with --plan: that plan is already made"),
            "{found}"
        );
        assert!(hint.contains("--parallel"), "{hint}");
    }

    let print = text.lines().find(|line| line.starts_with("fingerprint")).unwrap();
    let micro = text.lines().find(|line| line.starts_with("micro_batches")).unwrap();
    let table: [(&[(&str, &str)], &str); 7] = [
        (
            &[(print, "fingerprint = \"0\"")],
            "the plan is for a model with fingerprint 0, this one has ",
        ),
        (&[("layers=2", "layers=3")], "the plan is for a model with fingerprint "),
        (&[("vocabulary=256", "vocabulary=200")], "fingerprint"),
        (&[("\"embedding\"", "\"embeding\"")], "embed"),
        (&[(micro, "micro_batches = 3")], "batch of 8 does not divide into 3 micro-batches"),
        (&[("sequence = 16", "sequence = 17")], "17 tokens, but the model has 16 positions"),
        (&[("zero = ", "zero = 1")], "zero = 1"),
    ];
    for (changes, expected) in table {
        rewrite(&folder, &text, changes);
        let (found, _) = error(&[]);
        assert!(found.contains(expected), "{changes:?}: {found}");
        assert!(found.starts_with("error: plan.toml"), "{found}");
    }
    // A cut that the operator cannot have: an axis that it lacks, then one that does not divide.
    let node = text.lines().find(|line| line.starts_with("\"attention.norm\"")).unwrap();
    let dims = node.split(',').count();
    let cut = |axis: &str| format!("\"attention.norm\" = \"{}\"", vec![axis; dims].join(","));
    rewrite(&folder, &text, &[(node, &cut("q"))]);
    assert!(error(&[]).0.contains("'q' is no axis"), "{:?}", error(&[]));
    rewrite(&folder, &text, &[(node, &cut("n"))]);
    assert!(error(&[]).0.contains("'attention.norm' of block 'block."), "{:?}", error(&[]));
    std::fs::write(folder.path().join("plan.toml"), "model = 3").unwrap();
    assert!(error(&[]).0.starts_with("error: plan.toml: line 1: "), "{:?}", error(&[]));
}

#[test]
fn a_checkpoint_of_one_plan_goes_on_under_another() {
    let folder = Folder::new("planned-resume");
    plan(&folder, 4);
    let whole = losses(&train(&folder, &["--steps", "6", "--json"]).json()[0]);
    let file = folder.path().join("thinwire-checkpoints/step-000006");
    std::fs::remove_dir_all(&file).unwrap();
    std::fs::write(&file, "in the way").unwrap();
    let ended = train(&folder, &["--steps", "6"]);
    assert!(ended.error().contains("saving step 6: cannot rename"), "{}", ended.stderr);
    assert!(ended.stdout.contains("as many as predicted"), "{}", ended.stdout);
    std::fs::remove_file(&file).unwrap();
    let half = ["--steps", "6", "--checkpoint-every", "3", "--checkpoint-dir", "half"];
    train(&folder, &half).done();
    for ranks in [1, 2, 4] {
        plan(&folder, ranks);
        let resumed = train(&folder, &["--resume", "half/step-000003", "--json"]).json();
        let resumed = losses(&resumed[0]);
        assert_eq!(resumed.len(), 3);
        for (one, other) in whole[3..].iter().zip(&resumed) {
            assert!((one - other).abs() < 1e-4, "{ranks}: {whole:?}, {resumed:?}");
        }
    }
    // A checkpoint knows its model and its batch.
    let on = ["--resume", "half/step-000003", "--data", "text.txt", "--report", "none", "--json"];
    let on = [&["train", "--link", "none", "--checkpoint-dir", "none"][..], &on].concat();
    std::fs::write(folder.path().join("two.toml"), cluster(2)).unwrap();
    let two = ["--parallel", "auto", "--cluster", "two.toml", "--ranks", "2"];
    let resumed = folder.run(&[&on[..], &two].concat()).json();
    for (one, other) in whole[3..].iter().zip(losses(&resumed[0])) {
        assert!((one - other).abs() < 1e-4, "{whole:?}, {resumed:?}");
    }
    // Without flags the plan of the checkpoint continues, bit for bit.
    let resumed = folder.run(&on).json();
    assert_eq!(losses(&resumed[0]), whole[3..]);
    let shard = folder.path().join("half/step-000003/shard-1.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let ended = train(&folder, &["--resume", "half/step-000003"]);
    assert!(ended.error().contains("corrupt checkpoint"), "{}", ended.error());
    let other = MODEL.replace("layers=2", "layers=1");
    let flags = ["plan", "make", "--model", &other, "--sequence", "16", "--batch", "8"];
    let places = ["--cluster", "cluster.toml", "--precision", "single", "--output", "plan.toml"];
    folder.run(&[&flags[..], &places[..]].concat()).done();
    let ended = train(&folder, &["--resume", "half/step-000006", "--steps", "9"]);
    assert!(ended.error().contains("the plan is for gpt:layers=1"), "{}", ended.error());
}

/// Ranks and flags of `plan price` for every kind of plan.
const KINDS: [(usize, &str); 11] = [
    (2, "--stages 2 --micro-batches 2"),
    (2, "--stages 2 --micro-batches 2 --schedule interleaved:2 --activation-codecs int8"),
    (2, "--stages 2 --micro-batches 2 --schedule zero-bubble"),
    (
        4,
        "--stages 2 --mesh 2 --cuts data --micro-batches 2 --schedule gpipe --codecs int4 --error-budget 0.99",
    ),
    (4, "--stages 2 --mesh 2 --cuts data --micro-batches 2 --zero 1"),
    (2, "--mesh 2 --cuts data"),
    (2, "--mesh 2 --cuts data --zero 2"),
    (2, "--mesh 2 --cuts data --zero 3"),
    (2, "--mesh 2 --cuts data --zero each"),
    (4, "--mesh 2,2 --cuts grid"),
    (2, "--mesh 2 --recompute always"),
];

/// Steps of a training that is killed after its first checkpoint.
const STEPS: &str = "30";

#[test]
fn every_kind_of_plan_is_saved_and_goes_on_bit_for_bit() {
    let folder = Folder::new("planned-kinds");
    let model = MODEL.replace("layers=2", "layers=4");
    for (ranks, flags) in KINDS {
        let cluster = cluster(ranks);
        std::fs::write(folder.path().join("cluster.toml"), cluster).unwrap();
        let price = ["plan", "price", "--model", &model, "--sequence", "16", "--batch", "8"];
        let places = ["--cluster", "cluster.toml", "--output", "plan.toml"];
        let flags: Vec<&str> = flags.split(' ').collect();
        folder.run(&[&price[..], &places, &flags].concat()).done();
        let steps = ["--steps", STEPS, "--json", "--checkpoint-dir", "whole"];
        let whole = losses(&train(&folder, &steps).json()[0]);
        killed_after_a_checkpoint(&folder, ranks);
        let on =
            ["train", "--resume", "killed/step-000003", "--data", "text.txt", "--steps", STEPS];
        let quiet = ["--report", "none", "--link", "none", "--checkpoint-dir", "on", "--json"];
        let resumed = folder.run(&[&on[..], &quiet].concat()).json();
        assert_eq!(losses(&resumed[0]), whole[3..], "{flags:?}");
        let [on, whole] = ["on", "whole"].map(|name| numbers(&folder, name));
        assert!(!on.is_empty() && on == whole, "{flags:?}: other parameters or optimiser state");
        for name in ["on", "whole", "killed"] {
            std::fs::remove_dir_all(folder.path().join(name)).unwrap();
        }
    }
}

/// Trains, and kills every rank by signal 9 once there is a checkpoint of step 3.
fn killed_after_a_checkpoint(folder: &Folder, ranks: usize) {
    let fixed = ["train", "--plan", "plan.toml", "--data", "text.txt", "--report", "none"];
    let long = ["--steps", STEPS, "--link", "none"];
    let often = ["--checkpoint-every", "3", "--checkpoint-dir", "killed"];
    // On a busy machine a training may end before it is killed.
    let is_killed = || {
        let launcher = folder.command(&[&fixed[..], &long, &often].concat()).spawn().unwrap();
        let saved = folder.path().join("killed/step-000003");
        let ranks = 0..u32::try_from(ranks).unwrap();
        let all = ranks.map(|rank| rank_of(launcher.id(), rank).to_string());
        let all: Vec<String> = all.collect();
        eventually(|| saved.exists().then_some(()));
        // All at once: the launcher ends those that outlive one.
        std::process::Command::new("kill").args(["-s", "KILL"]).args(&all).status().unwrap();
        let is_killed = finish(launcher).stderr.contains("was killed by signal 9");
        if !is_killed {
            std::fs::remove_dir_all(folder.path().join("killed")).unwrap();
        }
        is_killed
    };
    assert!((0..5).any(|_| is_killed()), "each of five trainings ended before it was killed");
}

/// Bytes of the parameters and of the optimiser that the last checkpoint has, by file.
fn numbers(folder: &Folder, checkpoints: &str) -> Vec<(String, Vec<u8>)> {
    let files =
        std::fs::read_dir(folder.path().join(checkpoints).join(format!("step-{STEPS:0>6}")))
            .unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let tensors = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let read = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
    };
    let mut all: Vec<_> = tensors.map(read).collect();
    all.sort();
    all
}

#[test]
fn what_was_learnt_under_a_plan_writes_text() {
    let folder = Folder::new("planned-sample");
    let sample = |flags: &[&str]| folder.run(&[&["sample"], flags].concat());
    let whole = ["--length", "400", "--json"];
    plan(&folder, 1);
    let run = train(&folder, &["--steps", "4", "--json"]).json().remove(0);
    let written = run["sample"].as_str().unwrap();
    assert!(!written.is_empty());
    assert_eq!(written, harmless(sample(&whole).json()[0]["text"].as_str().unwrap()));
    // In parts it is the same model.
    let likeliest = ["--temperature", "0", "--length", "8"];
    let alone = sample(&likeliest).done();
    plan(&folder, 4);
    let ended = train(&folder, &["--steps", "4"]);
    let said =
        "each rank has only a part of the model: thinwire sample thinwire-checkpoints/step-000004";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert_eq!(sample(&likeliest).done(), alone);
    let prompt = |seed| sample(&["--prompt", "12 b", "--length", "20", "--seed", seed]).done();
    assert!(prompt("1").starts_with("12 b"));
    assert_eq!(prompt("1"), prompt("1"));
    assert_ne!(prompt("1"), prompt("2"));
}

/// The same text as reports have it.
fn harmless(text: &str) -> String {
    let shown = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
    text.chars().map(|letter| if shown(letter) { letter } else { '·' }).collect()
}

#[test]
fn ranks_plan_for_themselves() {
    let folder = Folder::new("planned-parallel");
    let fixed =
        ["train", "--data", "text.txt", "--report", "none", "--link", "none", "--steps", "3"];
    let run = |flags: &[&str]| folder.run(&[&fixed[..], &SMALL[..], flags].concat());
    std::fs::write(folder.path().join("cluster.toml"), cluster(2)).unwrap();
    let given = ["--cluster", "cluster.toml", "--parallel"];
    let data = [&given[..], &["data"]].concat();
    let semi = [&given[..], &["semi", "--pin", "block.*.mlp.up: n=tp"]].concat();
    // Without a cluster file ranks measure for half a minute; one of the ways to plan is enough.
    for flags in [&["--parallel", "auto"][..], &data, &semi] {
        let flags = [flags, &["--json", "--ranks", "2"]].concat();
        let [run] = &run(&flags).json()[..] else { panic!("one line per training") };
        assert_eq!(losses(run).len(), 3);
        for rank in run["planned"]["ranks"].as_array().unwrap() {
            assert_eq!(rank["counted_bytes"], rank["predicted_bytes"], "{flags:?}");
        }
    }
    let ended = run(&["--parallel", "auto", "--pin", "block.*.mlp.up: n=tp"]);
    assert_eq!(ended.error(), "error: --pin block.*.mlp.up: n=tp needs --parallel semi");
    let ended = run(&["--parallel", "semi"]);
    assert!(ended.error().contains("--parallel semi needs a --pin"), "{}", ended.error());
    let ended = run(&["--parallel", "semi", "--pin", "block.*.mlp.up: n"]);
    assert!(ended.error().contains("expected NODES: AXIS=DIMENSION"), "{}", ended.error());
    let ended = run(&["--parallel", "semi", "--pin", "block.*.nothing: n=tp"]);
    let expected = "error: pin 'block.*.nothing: n=tp' fits none of the model's ";
    assert!(ended.error().starts_with(expected), "before ranks are started: {}", ended.stderr);
    assert!(ended.hint().starts_with("hint: nodes are called "), "{}", ended.stderr);
    let ended = run(&["--parallel", "semi", "--pin", "block.*.mlp.up: z=tp"]);
    assert!(ended.error().ends_with("expected one of b, s, k, n, -"), "{}", ended.stderr);
    let ended = run(&["--parallel", "auto", "--cluster", "text.txt"]);
    assert!(ended.error().contains("line 1"), "{}", ended.error());
    std::fs::write(folder.path().join("cluster.toml"), cluster(4)).unwrap();
    for (flags, expected) in [
        (
            ["--parallel", "auto", "--cluster", "cluster.toml"],
            "cluster.toml is of 4 devices, but --ranks says 3",
        ),
        (
            ["--parallel", "auto", "--cluster", "/dev/zero"],
            "/dev/zero is no regular file, expected a cluster of at most 16777216 bytes",
        ),
        (["--parallel", "data", "--seed", "1"], "batch of 4 rows does not divide among 3 ranks"),
    ] {
        let ended = run(&[&flags[..], &["--ranks", "3"]].concat());
        assert_eq!(ended.error(), format!("error: {expected}"));
        assert!(!ended.hint().is_empty());
    }
}

/// Two slow cores, and a link so thin that encoding is worth it.
fn thin(folder: &Folder) {
    let device = cluster(4).replace("tflops = 0.001", "tflops = 0.0001\ncodec_gbyte_per_s = 10");
    let cluster = device.replace("size = 4", "size = 2").replace("gbit = 100", "gbit = 0.01");
    std::fs::write(folder.path().join("thin.toml"), cluster).unwrap();
}

#[test]
fn ranks_plan_with_the_codecs_that_they_are_given() {
    let folder = Folder::new("given-codecs");
    thin(&folder);
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "none"];
    let short = ["--checkpoint-dir", "none", "--steps", "4", "--json", "--cluster", "thin.toml"];
    let run = |flags: &[&str]| folder.run(&[&fixed[..], &short, &SMALL, flags].concat());
    let alone = losses(&run(&["--parallel", "data"]).json()[0]);
    for (flags, gradients, activations) in [
        (&["--parallel", "auto"][..], "they are", "they are"),
        (&["--parallel", "auto", "--codec", "none"], "they are", "they are"),
        (&["--parallel", "data", "--codec", "int8:stochastic"], "int8:stochastic", "they are"),
        (&["--parallel", "auto", "--codec", "auto:int8+topk:0.1"], "int8", "they are"),
        (&["--parallel", "auto", "--codec", "auto", "--error-budget", "1e-3"], "int8", "they are"),
        (&["--parallel", "auto", "--activation-codecs", "f16,int4"], "they are", "f16"),
    ] {
        let ended = run(flags);
        assert!(!ended.stderr.contains("is emulated"), "{}", ended.stderr);
        let said = ended.stderr.lines().find(|line| line.starts_with("planned: ")).unwrap();
        let named = |what: &str, name: &str| {
            let (_, told) = said.split_once(&format!("{what} as ")).unwrap();
            assert!(told.split([',', ' ']).any(|word| word == name.split(' ').next().unwrap()));
        };
        named("gradients", gradients);
        named("activations", activations);
        let lossy = ended.stderr.contains("activations are not sent as int4: this codec loses ");
        assert_eq!(lossy, activations == "f16", "{}", ended.stderr);
        let runs = ended.json();
        for rank in runs[0]["planned"]["ranks"].as_array().unwrap() {
            assert_eq!(rank["counted_bytes"], rank["predicted_bytes"], "{flags:?}");
        }
        for (one, other) in alone.iter().zip(losses(&runs[0])) {
            assert!((one - other).abs() < 0.05, "{flags:?}: {alone:?}, {:?}", losses(&runs[0]));
        }
    }
}

#[test]
fn links_that_are_not_those_of_the_plan_are_warned_of() {
    let folder = Folder::new("planned-links");
    thin(&folder);
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--checkpoint-dir", "none"];
    let auto = ["--parallel", "auto", "--cluster", "thin.toml", "--steps", "1"];
    let ended = folder.run(&[&fixed[..], &auto, &SMALL].concat());
    let said = "warning: thin.toml has links of 10 Mbit/s to a device, here 100 Mbit/s is emulated";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    ended.done();
}

#[test]
fn a_plan_that_sends_nothing_says_so() {
    let folder = Folder::new("planned-uncut");
    data_plan(&folder, 2);
    let text = std::fs::read_to_string(folder.path().join("plan.toml")).unwrap();
    let uncut = |line: &str| match line.strip_suffix(" = \"b\"") {
        Some(node) => format!("{node} = \"-\"\n"),
        None => format!("{line}\n"),
    };
    let uncut: String = text.lines().map(uncut).collect();
    std::fs::write(folder.path().join("plan.toml"), uncut).unwrap();
    let ended = train(&folder, &["--steps", "2", "--checkpoint-dir", "none"]);
    let said = ended.stderr.matches("the plan cuts nothing").count();
    assert_eq!(said, 1, "{}", ended.stderr);
    ended.done();
}

#[test]
fn codecs_that_no_plan_can_have_are_named() {
    let folder = Folder::new("planned-refused");
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "none"];
    let auto = ["--parallel", "auto"];
    for (flags, expected) in [
        (
            &["--error-budget", "0.3"][..],
            "--error-budget 0.3 has no effect without --codec: nothing",
        ),
        (
            &["--codec", "none", "--error-budget", "0.3"],
            "--error-budget 0.3 has no effect with codec none: nothing",
        ),
        (
            &["--codec", "int8", "--algorithm", "hierarchical:3:two-shot", "--ranks", "2"],
            "with 2 ranks, expected a multiple of 3",
        ),
        (&["--codec", "int8", "--error-budget", "2"], "expected 0 or more and less than 1"),
        (&["--activation-codecs", "onebit"], "codec onebit loses 0."),
        (&["--activation-codecs", "powersgd:4"], "codec powersgd:4 sends sums"),
    ] {
        let ended = folder.run(&[&fixed[..], &auto, &SMALL, flags].concat());
        assert!(ended.error().contains(expected), "{flags:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("calibrating"), "{flags:?}: {}", ended.stderr);
        assert!(flags.contains(&"--algorithm") || !ended.hint().is_empty());
    }
    let (f16, budget) = (["--activation-codecs", "f16"], ["--error-budget", "0.3"]);
    for (flags, more, expected) in [
        (
            &["--parallel", "data"][..],
            f16,
            "f16 cannot be used with --parallel data: no activations are sent there",
        ),
        (&[], f16, "f16 needs --parallel"),
        (&["--plan", "plan.toml"], f16, "f16 needs --parallel"),
        (
            &["--plan", "plan.toml"],
            budget,
            "0.3 cannot be used with --plan: the plan has its own error budget",
        ),
    ] {
        let ended = folder.run(&[&fixed[..], flags, &more].concat());
        assert_eq!(ended.error(), format!("error: {} {expected}", more[0]), "{flags:?}");
    }
}

#[test]
fn a_killed_rank_ends_a_planned_training() {
    let folder = Folder::new("planned-killed");
    plan(&folder, 4);
    let flags = ["train", "--plan", "plan.toml", "--data", "text.txt", "--report", "none"];
    let endless = ["--steps", "100000000", "--link", "none", "--trace", "trace.jsonl"];
    let often = ["--checkpoint-every", "2"];
    let launcher = folder.command(&[&flags[..], &endless[..], &often].concat()).spawn().unwrap();
    let trace = folder.path().join("trace.jsonl");
    eventually(|| std::fs::read_to_string(&trace).ok().filter(|text| text.lines().count() > 3));
    let ended = train(&folder, &["--steps", "1"]);
    let expected = "another training writes its checkpoints to thinwire-checkpoints";
    assert!(ended.error().ends_with(expected), "{}", ended.error());
    let others = [0, 1, 2].map(|rank| rank_of(launcher.id(), rank));
    kill(rank_of(launcher.id(), 3));
    let ended = finish(launcher);
    let error = ended.error();
    assert!(error.contains("rank 3 was killed by signal 9"), "{error}");
    // A rank that was writing a checkpoint says so, before the step at which the other was lost or without it.
    let steps = error.matches("step ").count() - error.matches("saving step ").count();
    assert!(steps <= 1 && error.contains("step "), "the step is said once: {error}");
    let hint = ended.hint();
    assert!(
        hint.contains("continue with: thinwire train ") && hint.contains("--plan plan.toml"),
        "{hint}"
    );
    assert!(hint.ends_with(" --resume thinwire-checkpoints"), "{hint}");
    assert!(others.iter().all(|rank| !lives(*rank)));
}
