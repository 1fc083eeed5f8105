//! Models, shown.

mod support;

use support::Folder;

#[test]
fn a_model_is_shown_layer_by_layer() {
    let folder = Folder::new("model");
    let [gpt] = &folder.run(&["model", "show", "gpt2-medium", "--batch", "2", "--json"]).json()[..]
    else {
        panic!("one object")
    };
    assert_eq!(gpt["parameters"], 354_823_168);
    assert_eq!((&gpt["batch"], &gpt["sequence"]), (&2.into(), &1024.into()));
    let blocks: Vec<_> = gpt["classes"].as_array().unwrap().iter().map(|c| &c["blocks"]).collect();
    assert_eq!(blocks, [1, 24, 1]);

    let text = folder.run(&["model", "show", "gpt2-medium", "--sequence", "8"]).done();
    assert!(text.contains("\n24 × block.0 … block.23\n"), "{text}");
    assert!(text.contains("b=1 s=8 k=1024 n=3072"), "{text}");
    assert!(text.contains("b=1 s=8 (n=1024)"), "of a norm nothing but tokens can be cut: {text}");
    assert!(
        text.contains("\nactivations in 16 bits: ") && text.contains(" MiB, of which"),
        "{text}"
    );
    assert!(text.contains(" GFLOP") && !text.contains("flop\n"), "{text}");
    let cuts = |node: usize| &gpt["classes"][1]["nodes"][node]["cuts"];
    assert_eq!((cuts(0), cuts(1)), (&"bs-".into(), &"bskn-".into()));
}

#[test]
fn a_model_is_written_and_read_and_planned() {
    let folder = Folder::new("model-file");
    let size = ["--batch", "2", "--sequence", "16"];
    let show = |model: &str, more: &[&str]| {
        let shown = ["model", "show", model, "--json"];
        let shown = folder.run(&[&shown[..], &size, more].concat());
        let [mut shown] = <[_; 1]>::try_from(shown.json()).unwrap();
        shown["model"].take();
        shown
    };
    let built = show(SMALL, &["--output", "graph.json"]);
    assert_eq!(show("graph.json", &[]), built);

    let plan = |model: &str| {
        let flags =
            ["plan", "make", "--model", model, "--sequence", "16", "--batch", "8", "--json"];
        let more = ["--cluster", "cluster.toml"];
        let [mut plan] =
            <[_; 1]>::try_from(folder.run(&[&flags[..], &more].concat()).json()).unwrap();
        plan["model"].take();
        plan
    };
    std::fs::write(folder.path().join("cluster.toml"), CLUSTER).unwrap();
    assert_eq!(plan("graph.json"), plan(SMALL));

    // Without blocks they are found, and the layers are still one class.
    let text = std::fs::read_to_string(folder.path().join("graph.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    file.as_object_mut().unwrap().remove("blocks");
    std::fs::write(folder.path().join("open.json"), file.to_string()).unwrap();
    let blocks = show("open.json", &[]);
    assert!(blocks["classes"].as_array().unwrap().iter().any(|class| class["blocks"] == 3));
    assert!(plan("open.json")["step_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
}

/// A model that is planned in no time.
const SMALL: &str = "gpt:layers=3,width=64,heads=4,vocabulary=256,positions=16";

/// Four devices that are slow to talk.
const CLUSTER: &str = r#"
    [[device]]
    name = "small"
    tflops = 100
    memory_gib = 16
    memory_gbyte_per_s = 900

    [[level]]
    name = "node"
    size = 4
    latency_us = 5
    gbit = 10
"#;

#[test]
fn files_that_are_no_models_are_refused_in_one_line() {
    let folder = Folder::new("model-none");
    let error = |file: &str, text: &str| {
        std::fs::write(folder.path().join(file), text).unwrap();
        folder.run(&["model", "show", file]).error().to_owned()
    };
    let expected = "error: a.json: it is no JSON: expected ident at line 1 column 2";
    assert_eq!(error("a.json", "no"), expected);
    let expected = "error: a.json: thinwire_model is null, expected 1";
    assert_eq!(error("a.json", "{}"), expected);
    assert!(error("a.onnx", "no").starts_with("error: a.onnx: it is no ONNX file: "));
    let ended = folder.run(&["model", "show", "none.onnx"]);
    assert!(ended.error().starts_with("error: cannot read none.onnx: "));
}

#[test]
fn a_model_that_is_none_is_told_of() {
    let folder = Folder::new("no-model");
    let ended = folder.run(&["model", "show", "gpt5"]);
    let error = ended.error();
    assert!(error.starts_with("error: no model is called 'gpt5', expected a name such as gpt2, "));
    let ended = folder.run(&["model", "show", "bert-base", "--sequence", "600"]);
    let expected = "error: bert-base: a sequence has 600 tokens, but the model has 512 positions";
    assert_eq!(ended.error(), expected);
    assert_eq!(ended.hint(), "hint: give --sequence 512 or less");
    let ended = folder.run(&["model", "show", "mlp", "--sequence", "2"]);
    assert_eq!(ended.hint(), "hint: leave --sequence out");
    let ended = folder.run(&["model", "show", "moe:"]);
    let expected = "error: moe: there are no sizes, expected layers=N,width=N,heads=N,";
    assert!(ended.error().starts_with(expected), "{}", ended.stderr);
    assert!(ended.hint().starts_with("hint: for instance moe:layers=4,width=128,heads=4,"));
}
