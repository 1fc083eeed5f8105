//! Malicious model files: each is refused in one line, before memory or time is spent on it.

use serde_json::{Value, json};
use thinwire_model::ModelFile;

/// Written by `thinwire.torch.export_graph`: tensor 1 is a weight, node 0 looks it up.
const TORCH: &str = include_str!("torch_gpt.json");
/// Deeper than any stack of a parser that calls itself for every bracket.
const DEEP: usize = 20_000;

fn refusal(text: &str, batch: usize) -> String {
    let read = ModelFile::parse(text).and_then(|file| file.graph(batch));
    let line = read.expect_err("it was not refused").to_string();
    assert!(!line.contains('\n') && line.len() < 1000, "{line}");
    line
}

fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut value: Value = serde_json::from_str(TORCH).unwrap();
    change(&mut value);
    value.to_string()
}

#[test]
fn what_is_deep_or_twice_or_nothing_is_refused() {
    for text in ["[".repeat(DEEP), "{\"a\":".repeat(DEEP), String::new(), "null".to_owned()] {
        refusal(&text, 1);
    }
    let deep = format!("{}1{}", "{\"batch\":".repeat(100), "}".repeat(100));
    let deep: Value = serde_json::from_str(&deep).unwrap();
    refusal(&changed(|file| file["tensors"][1]["shape"][0] = deep), 1);
    for (once, twice, key) in [
        ("\"sequence\":", "\"sequence\":9,\"sequence\":", "sequence"),
        ("\"name\":\"tokens.weight\"", "\"name\":\"tokens.weight\",\"name\":\"x\"", "name"),
        ("{\"embedding\":null}", "{\"embedding\":null,\"embedding\":null}", "embedding"),
    ] {
        let text = changed(|_| ());
        let (at, end) = (text.find(once).expect(once), once.len());
        let text = [&text[..at], twice, &text[at + end..]].concat();
        let found = refusal(&text, 1);
        assert!(found.contains(&format!("the field \"{key}\" is given twice")), "{found}");
    }
}

#[test]
fn sizes_that_cannot_be_counted_are_refused() {
    let most = json!(u64::MAX);
    let shapes = [
        json!([1 << 30, 1 << 30, 1 << 30]),
        json!([most, 16]),
        json!([-1, 16]),
        json!([0, 16]),
        json!([1e300, 16]),
        json!([{ "batch": most }, 16]),
        json!([{ "batch": 0 }, 16]),
        json!([{ "batch": 1 << 29 }, 16]),
        json!(vec![1; 100_000]),
        json!("16"),
    ];
    for shape in shapes {
        let told = shape.to_string();
        let found = refusal(&changed(|file| file["tensors"][1]["shape"] = shape), 3);
        assert!(found.contains("tokens.weight"), "{found} of {}", &told[..told.len().min(80)]);
    }
    for sequence in [json!(0), json!(1_u64 << 40), json!(-1), json!(6.5), most.clone()] {
        refusal(&changed(|file| file["sequence"] = sequence), 1);
    }
    refusal(TORCH, usize::MAX);
    refusal(TORCH, 0);
}

#[test]
fn operands_that_are_not_there_are_refused() {
    let most = json!(u64::MAX);
    for (field, value) in [
        ("inputs", json!([most, 0])),
        ("inputs", json!([1, 2])),
        ("inputs", json!([])),
        ("inputs", json!(vec![1; 100_000])),
        ("outputs", json!([most])),
        ("outputs", json!([0])),
        ("outputs", json!([])),
        ("outputs", json!([2, 2])),
        ("operator", json!({ "nothing": null })),
        ("operator", json!({ "embedding": null, "linear": null })),
    ] {
        let found = refusal(&changed(|file| file["nodes"][0][field] = value), 1);
        assert!(found.starts_with("node 0 'tokens.embedding'"), "{found}");
    }
    refusal(&changed(|file| file["output"] = most.clone()), 1);
    refusal(&changed(|file| file["loss"] = json!(0)), 1);
    refusal(&changed(|file| file["blocks"] = json!([{ "name": "all", "nodes": most }])), 1);
}
