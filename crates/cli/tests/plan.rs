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
    let expected = "trace.jsonl has no plan up to step 3, its first one is after step 7";
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
    assert_eq!(ended.error(), "error: trace.jsonl has no plan");
    assert_eq!(ended.hint(), "hint: train with --codec auto --trace FILE");
    let ended = folder.run(&["plan", "sync", "--trace", "text.txt"]);
    assert!(ended.error().starts_with("error: text.txt, line 1, is no step of a trace"));
    assert_eq!(ended.hint(), "hint: thinwire train --codec auto --trace FILE writes one");
    for path in [".", "/dev/zero"] {
        let ended = folder.run(&["plan", "sync", "--trace", path]);
        assert_eq!(ended.error(), format!("error: {path} is no regular file, expected a trace"));
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
        &["--codec", "topk:0.05", "--momentum-correction", "0.9"],
    ] {
        let flags = [flags, &["--steps", "6", "--json", "--checkpoint-dir", "none"]].concat();
        let [run] = &folder.train(&flags).json()[..] else { panic!("one line per training") };
        let losses = run["losses"].as_array().unwrap();
        let value = |index: usize| losses[index]["value"].as_f64().unwrap();
        assert!(value(5) < value(0), "{flags:?}: {losses:?}");
    }
}
