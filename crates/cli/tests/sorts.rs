//! Every sort of plan and of model that planners make or users write, trained by real processes.

#[path = "../../onnx/tests/import/files.rs"]
#[expect(dead_code, reason = "one model is enough here")]
mod files;
mod support;

use serde_json::{Value, json};
use support::{Ended, Folder};

const GPT: &str = "gpt:layers=2,width=16,heads=2,vocabulary=256,positions=16";
const LLAMA: &str =
    "llama:layers=2,width=16,heads=4,key_heads=2,feed_forward=16,vocabulary=256,positions=16";
const MOE: &str = "moe:layers=1,width=16,heads=2,key_heads=2,feed_forward=16,vocabulary=256,positions=16,experts=4,chosen=2";

/// Hosts of some slow cores, and a network between them.
fn cluster(folder: &Folder, cores: usize, hosts: usize, gbit: f64) {
    let level = |name: &str, size: usize, gbit: f64| {
        format!("[[level]]\nname = \"{name}\"\nsize = {size}\nlatency_us = 1\ngbit = {gbit}\n")
    };
    let device = "[[device]]\nname = \"core\"\ntflops = 0.0001\nmemory_gib = 1\n\
                  memory_gbyte_per_s = 0.1\ncodec_gbyte_per_s = 10\n";
    let text = format!("{device}{}{}", level("host", cores, 100.0), level("net", hosts, gbit));
    std::fs::write(folder.path().join("cluster.toml"), text).unwrap();
}

fn plan(folder: &Folder, model: &str, flags: &[&str]) -> Ended {
    let fixed = ["plan", "make", "--model", model, "--sequence", "16", "--batch", "8"];
    let places = ["--cluster", "cluster.toml", "--precision", "single", "--output", "plan.toml"];
    folder.run(&[&fixed[..], &places[..], flags].concat())
}

fn train(folder: &Folder, flags: &[&str]) -> Ended {
    let fixed = ["train", "--plan", "plan.toml", "--data", "text.txt", "--report", "none"];
    folder.run(&[&fixed[..], &["--link", "none", "--steps", "6"], flags].concat())
}

fn text(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path().join("plan.toml")).unwrap()
}

fn values(run: &Value, what: &str) -> Vec<f64> {
    let points = run[what].as_array().unwrap();
    points.iter().map(|point| point["value"].as_f64().unwrap()).collect()
}

/// A training's losses and, last, its validation, once its bytes are those of its program.
fn learnt(folder: &Folder, flags: &[&str]) -> Vec<f64> {
    let runs = train(folder, &[&["--json", "--checkpoint-dir", "none"], flags].concat()).json();
    for rank in runs[0]["planned"]["ranks"].as_array().unwrap() {
        assert_eq!(rank["counted_bytes"], rank["predicted_bytes"], "{rank}");
    }
    let validation = values(&runs[0], "validation");
    assert!([3, 6].contains(&validation.len()), "every step or every second, as there are few");
    [values(&runs[0], "losses"), vec![*validation.last().unwrap()]].concat()
}

fn near(actual: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(actual.len(), expected.len());
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < bound;
    assert!(actual.iter().zip(expected).all(near), "{actual:?}, expected {expected:?}");
}

#[test]
fn what_is_planned_with_codecs_runs() {
    let folder = Folder::new("sorts-codecs");
    cluster(&folder, 1, 1, 1.0);
    plan(&folder, GPT, &[]).done();
    let alone = learnt(&folder, &[]);
    let mut levels = 0;
    for (codecs, budget) in
        [("int8", "0.01"), ("int8,int4", "0.1"), ("topk:0.1", "0.9"), ("onebit", "0.9")]
    {
        for (cores, hosts) in [(1, 2), (1, 4), (2, 2)] {
            cluster(&folder, cores, hosts, 0.01);
            plan(&folder, GPT, &["--codecs", codecs, "--error-budget", budget]).done();
            levels += text(&folder).matches("within = 2").count();
            assert!(text(&folder).contains("[[codec]]"), "{codecs}: {}", text(&folder));
            near(&learnt(&folder, &[]), &alone, 0.2);
        }
    }
    assert!(levels > 0, "some are encoded between hosts alone");
}

#[test]
fn what_is_planned_with_codecs_of_activations_runs() {
    let folder = Folder::new("sorts-activations");
    cluster(&folder, 1, 1, 1.0);
    plan(&folder, GPT, &[]).done();
    let alone = learnt(&folder, &[]);
    let price = |flags: &[&str]| {
        let fixed = ["plan", "price", "--model", GPT, "--sequence", "16", "--batch", "8"];
        let places = ["--cluster", "cluster.toml", "--output", "plan.toml"];
        folder.run(&[&fixed[..], &places[..], flags].concat())
    };
    for (cores, flags) in [
        (1, &["--stages", "2", "--micro-batches", "2"][..]),
        (2, &["--stages", "2", "--mesh", "2", "--micro-batches", "4", "--schedule", "zero-bubble"]),
        (1, &["--mesh", "2", "--cuts", "free"]),
    ] {
        cluster(&folder, cores, 2, 0.01);
        price(flags).done();
        let raw = learnt(&folder, &[]);
        near(&raw, &alone, 1e-3);
        for codec in ["f16", "int8"] {
            let ended = price(&[flags, &["--activation-codecs", codec]].concat());
            let text = ended.done();
            if text.contains(&format!("activations travel as {codec} over level ")) {
                assert!(self::text(&folder).contains("[[activation]]"), "{text}");
            }
            near(&learnt(&folder, &[]), &alone, 0.05);
        }
    }
    let ended = price(&["--activation-codecs", "int4", "--activation-budget", "0.001"]);
    let said = "activations are not sent as int4: this codec loses ";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[test]
fn what_codecs_owe_is_taken_up_or_dropped_aloud() {
    let folder = Folder::new("sorts-owed");
    cluster(&folder, 1, 2, 0.01);
    plan(&folder, GPT, &["--codecs", "int4", "--error-budget", "0.9"]).done();
    assert!(text(&folder).contains("[[codec]]"), "{}", text(&folder));
    let whole = train(&folder, &["--json", "--checkpoint-dir", "none"]).json();
    let kept = ["--checkpoint-every", "3", "--checkpoint-dir", "half"];
    train(&folder, &kept).done();
    let resumed = ["--resume", "half/step-000003", "--json", "--checkpoint-dir", "none"];
    let resumed = train(&folder, &resumed);
    let found = values(&resumed.json()[0], "losses");
    assert_eq!(found, values(&whole[0], "losses")[3..], "bit for bit");
    cluster(&folder, 1, 1, 1.0);
    plan(&folder, GPT, &[]).done();
    let other = train(&folder, &["--resume", "half/step-000003", "--checkpoint-dir", "none"]);
    let said = "the checkpoint is of another plan: the residuals of its codecs are dropped";
    assert!(other.stderr.contains(said), "{}", other.stderr);
    other.done();
}

#[test]
fn every_family_of_text_models_trains() {
    let folder = Folder::new("sorts-families");
    for model in [LLAMA, MOE] {
        cluster(&folder, 1, 1, 1.0);
        plan(&folder, model, &[]).done();
        let alone = learnt(&folder, &[]);
        assert!(alone[5] < alone[0], "{model}: {alone:?}");
        for (cores, hosts) in [(2, 1), (2, 2)] {
            cluster(&folder, cores, hosts, 1.0);
            plan(&folder, model, &[]).done();
            near(&learnt(&folder, &[]), &alone, 1e-4);
        }
    }
}

/// A model's losses without a plan, and last its validation.
fn learnt_plainly(folder: &Folder, model: &str, flags: &[&str]) -> Vec<f64> {
    let fixed =
        ["train", "--model", model, "--batch", "8", "--data", "text.txt", "--codec", "none"];
    let places = ["--report", "none", "--checkpoint-dir", "none", "--link", "none", "--json"];
    let runs = folder.run(&[&fixed[..], &places, &["--steps", "6"], flags].concat()).json();
    [values(&runs[0], "losses"), vec![values(&runs[0], "validation")[5]]].concat()
}

#[test]
fn any_model_learns_without_a_plan_as_it_does_under_one() {
    let folder = Folder::new("sorts-plain");
    cluster(&folder, 1, 1, 1.0);
    let context = ["--context", "16"];
    for model in [GPT, LLAMA, MOE] {
        plan(&folder, model, &[]).done();
        let planned = learnt(&folder, &[]);
        for ranks in ["1", "2"] {
            let flags = [&context[..], &["--ranks", ranks]].concat();
            near(&learnt_plainly(&folder, model, &flags), &planned, 1e-4);
        }
    }
    let bert = "bert:layers=1,width=16,heads=2,vocabulary=256,positions=16";
    let losses = learnt_plainly(&folder, bert, &context);
    assert!(losses[5] < losses[0], "{losses:?}");
    // A file has its own sequences, and other names if it likes.
    plan(&folder, GPT, &[]).done();
    let planned = learnt(&folder, &[]);
    model_file(&folder, "model.json", |_| {});
    near(&learnt_plainly(&folder, "model.json", &["--ranks", "2"]), &planned, 1e-4);
}

#[test]
fn an_onnx_file_learns_without_a_plan_and_writes_text() {
    let folder = Folder::new("sorts-onnx");
    let bytes = files::gpt(2, 16, 2, 256, 16).bytes();
    std::fs::write(folder.path().join("model.onnx"), bytes).unwrap();
    cluster(&folder, 1, 1, 1.0);
    plan(&folder, "model.onnx", &[]).done();
    let planned = learnt(&folder, &[]);
    assert!(planned[5] < planned[0], "{planned:?}");
    for ranks in ["1", "2"] {
        let flags = ["--context", "16", "--ranks", ranks];
        near(&learnt_plainly(&folder, "model.onnx", &flags), &planned, 1e-4);
    }
    let sample = || {
        let text = folder.run(&["sample", "--prompt", "12 b", "--temperature", "0"]).done();
        assert!(text.starts_with("12 b"), "{text}");
        text
    };
    train(&folder, &[]).done();
    let written = sample();
    let fixed = ["train", "--model", "model.onnx", "--context", "16", "--data", "text.txt"];
    let places = ["--report", "none", "--link", "none", "--codec", "none"];
    let steps = ["--batch", "8", "--steps", "6"];
    folder.run(&[&fixed[..], &places, &steps].concat()).done();
    assert_eq!(sample(), written, "under a plan and without one");
}

#[test]
fn a_model_by_name_goes_on_and_writes_text() {
    let folder = Folder::new("sorts-named");
    let fixed = ["train", "--data", "text.txt", "--report", "none", "--link", "none", "--json"];
    let run = |flags: &[&str]| folder.run(&[&fixed[..], flags].concat());
    let model = ["--model", LLAMA, "--batch", "8", "--codec", "int8"];
    let whole = run(&[&model[..], &["--steps", "6", "--checkpoint-every", "3"]].concat()).json();
    assert!(!whole[0]["sample"].as_str().unwrap().is_empty());
    let half = ["--resume", "thinwire-checkpoints/step-000003", "--checkpoint-dir", "none"];
    let resumed = run(&[&half[..], &["--codec", "int8"]].concat()).json();
    assert_eq!(values(&resumed[0], "losses"), values(&whole[0], "losses")[3..], "bit for bit");
    let text = folder.run(&["sample", "--prompt", "12 b", "--length", "20"]).done();
    assert!(text.starts_with("12 b"), "{text}");
    for (flags, expected) in [
        (
            &["--model", GPT, "--width", "8"][..],
            "--width 8 cannot be used with --model gpt:layers=2",
        ),
        (
            &["--model", "resnet50", "--batch", "2"],
            "text.txt is no folder of images and no .npz file",
        ),
        (&["--model", "gpt5"], "no model is called 'gpt5'"),
        (&["--input", "tokens=x"], "--input tokens=x needs --model or --plan"),
        (
            &["--resume", "thinwire-checkpoints", "--width", "8"],
            "--width 8 cannot be used with --model llama",
        ),
        (&["--resume", "thinwire-checkpoints", "--model", GPT], "the checkpoint's model has llama"),
    ] {
        let ended = run(flags);
        assert!(ended.error().contains(expected), "{flags:?}: {}", ended.stderr);
        assert!(!ended.hint().is_empty());
    }
}

/// The small GPT as a file, changed.
fn model_file(folder: &Folder, name: &str, change: impl FnOnce(&mut Value)) {
    folder.run(&["model", "show", GPT, "--sequence", "16", "--output", name]).done();
    let path = folder.path().join(name);
    let mut file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut file);
    std::fs::write(path, file.to_string()).unwrap();
}

#[test]
fn inputs_may_have_any_names() {
    let folder = Folder::new("sorts-names");
    cluster(&folder, 2, 1, 1.0);
    plan(&folder, GPT, &[]).done();
    let named = learnt(&folder, &[]);
    model_file(&folder, "model.json", |file| {
        for tensor in file["tensors"].as_array_mut().unwrap() {
            match tensor["name"].as_str() {
                Some("tokens") => tensor["name"] = json!("input_ids"),
                Some("targets") => tensor["name"] = json!("labels"),
                Some("positions") => tensor["name"] = json!("arange"),
                _ => {}
            }
        }
    });
    plan(&folder, "model.json", &[]).done();
    near(&learnt(&folder, &[]), &named, 1e-4);
    near(&learnt(&folder, &["--input", "tokens=input_ids"]), &named, 1e-4);
    let ended = train(&folder, &["--input", "tokens=x"]);
    let expected = "error: plan.toml: the model has no input 'x' for tokens, expected 'input_ids'";
    assert_eq!(ended.error(), expected);
    let ended = train(&folder, &["--input", "x"]);
    assert!(ended.error().contains("expected tokens=NAME"), "{}", ended.error());
}

/// Behind the second product of every feed-forward part, partial sums along the mesh's second
/// dimension, and then replicas: Megatron's all-reduce.
fn reduce_by_hand(file: &mut Value) {
    let mut at = 0;
    while at < file["nodes"].as_array().unwrap().len() {
        let node = file["nodes"][at].clone();
        let name = node["name"].as_str().unwrap().to_owned();
        at += 1;
        let Some(block) = name.strip_suffix(".mlp.down") else { continue };
        let made = node["outputs"][0].clone();
        let mut from = made.clone();
        for (what, cut) in [("sum", "+"), ("whole", "-")] {
            let tensors = file["tensors"].as_array_mut().unwrap();
            let mut tensor = tensors[made.as_u64().unwrap() as usize].clone();
            tensor["name"] = json!(format!("{block}.mlp.{what}"));
            tensors.push(tensor);
            let to = json!(tensors.len() - 1);
            let nodes = file["nodes"].as_array_mut().unwrap();
            for later in &mut nodes[at..] {
                let inputs = later["inputs"].as_array_mut().unwrap();
                inputs
                    .iter_mut()
                    .filter(|input| **input == from)
                    .for_each(|input| *input = to.clone());
            }
            let place = json!({"place": {"cuts": {"tensor": cut}}});
            let name = format!("{block}.mlp.{what}");
            let node = json!({"name": name, "operator": place, "inputs": [from], "outputs": [to]});
            nodes.insert(at, node);
            at += 1;
            from = to;
        }
        for known in file["blocks"].as_array_mut().unwrap() {
            if known["name"] == block {
                known["nodes"] = json!(known["nodes"].as_u64().unwrap() + 2);
            }
        }
    }
}

#[test]
fn collectives_by_hand_are_planned_and_run() {
    let folder = Folder::new("sorts-places");
    cluster(&folder, 1, 1, 1.0);
    plan(&folder, GPT, &[]).done();
    let alone = learnt(&folder, &[]);
    model_file(&folder, "model.json", reduce_by_hand);
    let shown = folder.run(&["model", "show", "model.json"]).done();
    assert!(shown.contains("place tensor=+") && shown.contains("place tensor=-"), "{shown}");
    cluster(&folder, 4, 1, 1.0);
    let pin = ["--pin", "block.*.mlp.up: n=tensor", "--pin", "block.*.mlp.down: k=tensor"];
    plan(&folder, "model.json", &pin).done();
    let made = text(&folder);
    assert!(made.contains("\"mlp.sum\" = ") && made.contains("+\""), "{made}");
    near(&learnt(&folder, &[]), &alone, 1e-4);
    let pin = ["--pin", "block.*.mlp.whole: n=tensor"];
    let ended = plan(&folder, "model.json", &pin);
    let expected = "error: pins 'block.0.mlp.whole: -=tensor' and 'block.*.mlp.whole: n=tensor' \
                    contradict each other at 'block.0.mlp.whole'";
    assert_eq!(ended.error(), expected);
    // A file that was edited against the model.
    let line = made.lines().find(|line| line.starts_with("\"mlp.whole\"")).unwrap();
    let dims = line.split(',').count();
    let cut = format!("\"mlp.whole\" = \"{}\"", vec!["n"; dims].join(","));
    std::fs::write(folder.path().join("plan.toml"), made.replace(line, &cut)).unwrap();
    let ended = train(&folder, &[]);
    assert!(ended.error().contains("mlp.whole"), "{}", ended.error());
}
