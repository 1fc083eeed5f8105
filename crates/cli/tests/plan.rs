//! The plan of a training, explained from its trace.

mod support;

use support::Folder;

const TRACE: [&str; 6] = ["--steps", "6", "--checkpoint-dir", "none", "--trace", "trace.jsonl"];

#[test]
fn a_trace_explains_the_plan() {
    let folder = Folder::new("plan");
    folder.train(&[&TRACE[..], &["--codec", "auto", "--ranks", "2"]].concat()).done();
    let [plan] = &folder.run(&["plan", "sync", "--trace", "trace.jsonl", "--json"]).json()[..]
    else {
        panic!("one object per plan")
    };
    assert!(plan["raw_iteration_s"].as_f64() >= plan["iteration_s"].as_f64());
    let (buckets, measured) = (plan["buckets"].as_array().unwrap(), plan["measured_s"].as_array());
    for (bucket, measured) in buckets.iter().zip(measured.unwrap()) {
        let alternatives = bucket["alternatives"].as_array().unwrap();
        let chosen: Vec<_> = alternatives.iter().filter(|one| one["verdict"] == "chosen").collect();
        assert_eq!(chosen.len(), 1, "{bucket}");
        assert_eq!(chosen[0]["codec"], bucket["chosen"]["codec"]);
        let taken = measured.as_array().unwrap().iter().filter(|time| !time.is_null()).count();
        assert!(taken >= 1, "what is in force was measured: {measured}");
    }
    let first = folder.run(&["plan", "sync", "--trace", "trace.jsonl", "--step", "0"]).done();
    assert!(first.starts_with("planned after step 0: before the first step\n"), "{first}");
    assert!(first.contains("vectors travel raw"), "{first}");
    let (plan, step) = (first.lines().nth(1).unwrap(), first.lines().nth(2).unwrap());
    assert!(plan.starts_with("plan: ") && plan.contains(" of the elements)"), "{first}");
    assert!(step.starts_with("step: ") && step.contains(" predicted if everything"), "{first}");
    assert!(first.contains("\nrule: ") && first.contains("\ncolumns: "), "{first}");
    // The timeline beside it has the same steps.
    let text = std::fs::read_to_string(folder.path().join("trace.trace.json")).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!(
        [named("step 0"), named("step 5"), named("step 6"), named("process_name")],
        [1, 1, 0, 1]
    );
    assert!(named("thread_name") > 1 && named("encode") > 0, "{text}");
}

/// The lines of a trace with other steps, from `first` on.
fn shifted(folder: &Folder, first: u64) {
    let path = folder.path().join("trace.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["step"] = (value["step"].as_u64().unwrap() + first).into();
        format!("{value}\n")
    });
    std::fs::write(path, lines.collect::<String>()).unwrap();
}

#[test]
fn steps_before_the_first_plan_and_after_the_last_step_are_told_of() {
    let folder = Folder::new("plan-steps");
    folder.train(&[&TRACE[..], &["--codec", "auto", "--ranks", "1"]].concat()).done();
    shifted(&folder, 7);
    let ended = folder.run(&["plan", "sync", "--trace", "trace.jsonl", "--step", "3"]);
    let expected = "trace.jsonl has no plan up to step 3: its first plan is after step 7";
    assert_eq!(ended.error(), format!("error: {expected}"));
    let ended = folder.run(&["plan", "sync", "--trace", "trace.jsonl", "--step", "999"]);
    assert_eq!(ended.error(), "error: --step 999, but trace.jsonl ends with step 12");
    folder.run(&["plan", "sync", "--trace", "trace.jsonl", "--step", "12"]).done();
}

#[test]
fn a_training_without_a_plan_is_told_of() {
    let folder = Folder::new("no-plan");
    folder.train(&[&TRACE[..], &["--codec", "int8", "--ranks", "1"]].concat()).done();
    let ended = folder.run(&["plan", "sync", "--trace", "trace.jsonl"]);
    let expected = "trace.jsonl is of a training with codec int8, which plans nothing by step";
    assert_eq!(ended.error(), format!("error: {expected}"));
    assert_eq!(ended.hint(), "hint: train with --codec auto --trace FILE");
    let ended = folder.run(&["plan", "sync", "--trace", "text.txt"]);
    assert!(ended.error().starts_with("error: text.txt, line 1, is no step of a trace"));
    assert_eq!(ended.hint(), "hint: thinwire train --codec auto --trace FILE writes one");
    for path in [".", "/dev/zero"] {
        let ended = folder.run(&["plan", "sync", "--trace", path]);
        let expected = format!("error: {path} is no regular file, expected a trace of at most");
        assert!(ended.error().starts_with(&expected), "{}", ended.stderr);
    }
    let ended = folder.train(&["--momentum-correction", "1"]);
    assert!(ended.error().ends_with("expected a number from 0 to below 1"), "{}", ended.stderr);
}

#[test]
fn every_feedback_trains() {
    let folder = Folder::new("feedbacks");
    for flags in [
        &["--codec", "int4", "--feedback", "ef21"][..],
        &["--codec", "int4", "--feedback", "average:0.5"],
        &["--codec", "blocktopk:64/4096:lloyd:2", "--feedback", "decay:0.95"],
        &["--codec", "topk:0.05", "--momentum-correction", "0.9"],
    ] {
        let flags = [flags, &["--steps", "6", "--json", "--checkpoint-dir", "none"]].concat();
        let [run] = &folder.train(&flags).json()[..] else { panic!("one line per training") };
        let losses = run["losses"].as_array().unwrap();
        let value = |index: usize| losses[index]["value"].as_f64().unwrap();
        assert!(value(5) < value(0), "{flags:?}: {losses:?}");
    }
}

const CLUSTER: &str = "[[device]]\nname = \"a100\"\ntflops = 312\nmemory_gib = 80\n\
    memory_gbyte_per_s = 2039\noverhead_us = 10\n\
    [[level]]\nname = \"node\"\nsize = 4\nlatency_us = 5\ngbit = 2400\n\
    [[level]]\nname = \"pod\"\nsize = 2\nlatency_us = 10\ngbit = 25\n";

fn make(folder: &Folder, cluster: &str, flags: &[&str]) -> support::Ended {
    std::fs::write(folder.path().join("cluster.toml"), cluster).unwrap();
    let fixed = ["plan", "make", "--model", "gpt2", "--cluster", "cluster.toml", "--batch", "32"];
    folder.run(&[&fixed[..], flags].concat())
}

#[test]
fn a_plan_is_made_written_and_drawn() {
    let folder = Folder::new("plan-make");
    let flags = ["--output", "plan.toml", "--page", "plan.html", "--codecs", "int8,int4"];
    // A link that is no thinner, or one of the two nodes would do it alone.
    let text = make(&folder, &CLUSTER.replace("gbit = 25", "gbit = 100"), &flags).done();
    for part in ["a step takes ", "beside it:", "data parallel", "the gap is ", "over level 'pod'"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let plan = std::fs::read_to_string(folder.path().join("plan.toml")).unwrap();
    assert!(plan.starts_with("model = \"gpt2\"\n") && plan.contains("[[way]]"), "{plan}");
    let page = std::fs::read_to_string(folder.path().join("plan.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    for part in ["Pipeline", "Mesh", "Stages", "Memory"].map(|part| format!("<h2>{part}</h2>")) {
        assert!(page.contains(&part), "{part}");
    }
    assert!(page.contains("Megatron grid") && page.contains("<td>a100</td>"), "{page}");
    // Memory is counted in powers of two, everywhere.
    assert!(!page.contains(" GB<") && !page.contains(" MB<"), "{page}");
    assert!(!page.contains("http") && !page.contains("NaN") && !page.contains("inf"));
    assert!(page.contains("<h2>Codecs</h2>") && page.contains("gradients of "), "{page}");
    let [json] = &make(&folder, CLUSTER, &["--json"]).json()[..] else { panic!("one object") };
    assert_eq!(json["model"], "gpt2");
}

#[test]
fn a_plan_is_explained() {
    let folder = Folder::new("plan-why");
    let text = make(&folder, CLUSTER, &["--explain", "block.3.mlp.up"]).done();
    assert!(text.starts_with("block.3.mlp.up in ") && text.contains("axes b "), "{text}");
    assert!(!text.contains("block.0."), "{text}");
}

#[test]
fn reports_fit_a_terminal() {
    let folder = Folder::new("plan-wide");
    let price = ["plan", "price", "--model", "gpt2", "--cluster", "cluster.toml", "--batch", "32"];
    let codecs = ["--activation-codecs", "int8,f16", "--codecs", "int8"];
    let price = [&price[..], &["--stages", "2", "--mesh", "4"], &codecs].concat();
    for text in [
        make(&folder, CLUSTER, &codecs).done(),
        make(&folder, CLUSTER, &["--explain", "mlp.up"]).done(),
        folder.run(&price).done(),
    ] {
        assert!(text.contains(" a device sends ") || text.contains("\na device sends "), "{text}");
        assert!(
            text.lines().all(|line| !line.ends_with(" ZeRO") && !line.ends_with(" of")),
            "{text}"
        );
        let long = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "{text}");
    }
}

#[test]
fn impossible_plans_say_why_in_one_line() {
    let folder = Folder::new("plan-refused");
    let small = CLUSTER.replace("memory_gib = 80", "memory_gib = 0.1");
    for (cluster, flags, error, hint) in [
        (
            CLUSTER,
            &["--pin", "layers.*: n=tp"][..],
            "error: pin 'layers.*: n=tp' fits none of the model's",
            "hint: nodes are called ",
        ),
        (
            CLUSTER,
            &["--codecs", "powersgd:4"],
            "error: codec powersgd:4 sends sums, expected one that sends bytes",
            "hint: int8, int4 and onebit are such codecs",
        ),
        (CLUSTER, &["--explain", "mlp"], "error: 'mlp' is none of the model's", "hint: nodes are"),
        (
            &CLUSTER.replace("size = 2", "size = 0"),
            &[],
            "error: cluster.toml: level 'pod': size is 0, expected at least 1",
            "",
        ),
        (
            &CLUSTER.replace("size = 2", "size = 2000000"),
            &[],
            "error: cluster.toml: level 'pod': size 2000000 makes 8000000 devices",
            "",
        ),
        (
            &CLUSTER.replace("gbit = 25", "gbit = 5e-324"),
            &[],
            "error: cluster.toml: level 'pod': gbit is 5e-324, expected 1e-6 to 1e6",
            "hint: gbit counts 10^9 bits a second",
        ),
        (
            CLUSTER,
            &["--codecs", "zip"],
            "error: unknown codec 'zip'",
            "hint: int8, int4 and onebit are codecs",
        ),
        (
            &small,
            &[],
            "error: the smallest plan needs ",
            "hint: recomputation, ZeRO 3 and the smallest micro-batches are not enough; ",
        ),
    ] {
        let ended = make(&folder, cluster, flags);
        assert!(ended.error().starts_with(error), "{}", ended.stderr);
        assert!(!ended.error().contains('\n'), "{}", ended.stderr);
        if !hint.is_empty() {
            assert!(ended.hint().starts_with(hint), "{}", ended.stderr);
        }
    }
    for (flags, expected) in [
        (&["--explain", "embed", "--json"][..], "cannot be used with '--json'"),
        (&["--output", "same", "--page", "same"], "--output and --page are both same"),
        (&["--output", "no/plan.toml"], "cannot write the plan no/plan.toml: no is no folder"),
        (&["--error-budget", "0.2"], "--codecs"),
        (&["--activation-budget", "0.2"], "--activation-codecs"),
        (&["--activation-codecs", "vote"], "codec vote loses "),
        (&["--activation-codecs", "zip"], "unknown codec 'zip'"),
    ] {
        let ended = make(&folder, CLUSTER, flags);
        assert!(ended.error().contains(expected), "{}", ended.stderr);
    }
    let price = ["plan", "price", "--model", "gpt2", "--cluster", "cluster.toml", "--batch", "32"];
    for (flags, error, hint) in [
        (
            &["--stages", "4", "--mesh", "2,2"][..],
            "4 stages of mesh [2, 2] are 16 devices, but the cluster has 8",
            "stages times the mesh make 8 at most: 1 stage of [8], for instance",
        ),
        (
            &["--mesh", "4294967296,4294967296"],
            "1 stage of mesh [4294967296, 4294967296] are too many devices to count, but the \
             cluster has 8",
            "stages times the mesh",
        ),
        (
            &["--mesh", "8", "--pin", "block.*.mlp.up: n=tp"],
            "pin 'block.*.mlp.up: n=tp' is on tensor, dimension 2 of a mesh, expected at most 1",
            "give a mesh of 2 dimensions, such as 1,8, or pin the axis to data",
        ),
        (&["--mesh", "2,2,2,1"], "--mesh of 4 dimensions, expected 1 to 3", "--mesh 4,2"),
        (
            &["--micro-batches", "3"],
            "batch of 32 does not divide into 3 micro-batches",
            "micro-batches are equal parts of the batch",
        ),
        (
            &["--sequence", "4096"],
            "gpt2: a sequence has 4096 tokens, but the model has 1024 positions",
            "give --sequence 1024 or less",
        ),
        (
            &["--pin", "block.*.mlp.up: n=width"],
            "no dimension of a mesh is called 'width', expected one of data, dp, 0, tensor, tp, 1",
            "data, dp and 0 are the first dimension; tensor, tp and 1 are the second",
        ),
        (
            &["--activation-codecs", "randomk:1"],
            "codec randomk:1 draws the same elements on all ranks, expected a codec",
            "f16, bf16, e4m3 and int8 are such codecs",
        ),
    ] {
        let ended = folder.run(&[&price[..], flags].concat());
        assert!(ended.error().starts_with(&format!("error: {error}")), "{}", ended.stderr);
        assert!(ended.hint().starts_with(&format!("hint: {hint}")), "{}", ended.stderr);
    }
    let ended = folder.run(&[&price[..4], &["--cluster", "no.toml", "--batch", "8"]].concat());
    assert!(ended.error().starts_with("error: cannot read no.toml: "), "{}", ended.stderr);
    assert!(ended.hint().starts_with("hint: thinwire plan calibrate "), "{}", ended.stderr);
    let ended = folder.run(&["plan", "calibrate", "--ranks", "1", "--output", "."]);
    assert_eq!(ended.error(), "error: cannot write the cluster: . is a folder");
    let ended = make(&folder, CLUSTER, &["--error-budget", "2"]);
    let expected = "expected 0 or more and less than 1";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
}

/// Machines to begin with, and for each a model and a batch that suit it.
#[test]
fn plans_are_made_for_every_example_of_a_cluster() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/clusters");
    let folder = Folder::new("clusters");
    let table: [(&str, &[&str], usize); 4] = [
        ("a100-1024", &["--model", "gpt3-175b", "--batch", "1536"], 1024),
        // No plan for all 64 devices is faster.
        ("ethernet-8x8", &["--model", "gpt2-xl", "--batch", "512", "--codecs", "auto"], 56),
        ("h100-4096", &["--model", "gpt3-175b", "--batch", "4096"], 4096),
        ("laptops-wifi", &["--model", "gpt2", "--batch", "32", "--precision", "single"], 2), // two of the four are faster
    ];
    let names = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, table.map(|(name, ..)| format!("{name}.toml")));
    for (name, flags, devices) in table {
        let path = format!("{examples}/{name}.toml");
        let [plan] = &folder
            .run(&[&["plan", "make", "--cluster", &path, "--json"][..], flags].concat())
            .json()[..]
        else {
            panic!("one plan")
        };
        let mesh: usize =
            plan["mesh"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).product();
        let stages = plan["stage"].as_array().unwrap().len();
        assert_eq!(mesh * stages, devices, "{name}");
    }
}
