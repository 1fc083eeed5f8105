//! Models as files: read back equal, divided into blocks, and refused where they are wrong.

use proptest::prelude::*;
use serde_json::{Value, json};
use thinwire_model::{
    Conv2d, Embedding, Epsilon, LayerNorm, ModelFile, NAMES, Operator, Pool, PoolKind, RmsNorm,
    classes, fingerprint, named, summary, usual_sequence,
};
use thinwire_wire::Hint;

/// The file of a built-in model, as it is read again.
fn file(name: &str) -> ModelFile {
    let sequence = usual_sequence(name).min(16);
    let file = ModelFile::new(name, sequence, |batch| named(name, batch, sequence)).unwrap();
    let read = ModelFile::parse(&file.text()).unwrap();
    assert_eq!(read, file, "{name}");
    read
}

/// The same file without some of its fields, and with others.
fn changed(file: &ModelFile, change: impl FnOnce(&mut Value)) -> Result<ModelFile, String> {
    let mut value: Value = serde_json::from_str(&file.text()).unwrap();
    change(&mut value);
    ModelFile::parse(&value.to_string()).map_err(|error| error.to_string())
}

fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let read = changed(&file("mlp"), change);
    match read.and_then(|file| file.graph(2).map_err(|error| error.to_string())) {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error,
    }
}

#[test]
fn what_is_written_and_read_is_equal_for_every_batch() {
    for name in NAMES {
        let file = file(name);
        for batch in [1, 2, 3, 8] {
            let (read, built) =
                (file.graph(batch).unwrap(), named(name, batch, file.sequence).unwrap());
            assert_eq!(fingerprint(&read), fingerprint(&built), "{name}");
            assert_eq!(read, built, "{name}");
        }
    }
}

#[test]
fn blocks_are_found_where_there_are_none() {
    let counts = |name: &str| -> (Vec<usize>, usize) {
        let undivided = changed(&file(name), |file| drop(file["blocks"].take())).map(|_| ());
        assert!(undivided.is_err(), "null is no list of blocks");
        let undivided = changed(&file(name), |file| {
            file.as_object_mut().unwrap().remove("blocks");
        });
        let graph = undivided.unwrap().graph(2).unwrap();
        let counts = classes(&graph).iter().map(|class| class.blocks.len()).collect();
        (counts, graph.blocks.iter().map(|block| block.nodes.len()).sum())
    };
    let nodes = |name: &str| named(name, 2, usual_sequence(name).min(16)).unwrap().nodes.len();
    assert_eq!(counts("gpt2-medium"), (vec![1, 1, 24, 1], nodes("gpt2-medium")));
    assert_eq!(counts("llama2-7b"), (vec![1, 32, 1], nodes("llama2-7b")));
    assert_eq!(counts("mlp").0.len(), 3);
    assert!(counts("resnet50").0.contains(&5));
    assert!(counts("vgg16").0.len() > 10);
}

#[test]
fn equal_blocks_have_nodes_of_equal_names() {
    let undivided = changed(&file("gpt2"), |file| {
        file.as_object_mut().unwrap().remove("blocks");
    });
    let graph = undivided.unwrap().graph(1).unwrap();
    let names = |block: usize| -> Vec<&str> {
        let block = &graph.blocks[block];
        let nodes = graph.nodes[block.nodes.clone()].iter();
        nodes.map(|node| node.name.strip_prefix(&block.name).unwrap()).collect()
    };
    assert_eq!(names(2), names(13));
    assert!(names(2).contains(&".mlp.up"), "{:?}", names(2));
}

#[test]
fn a_file_that_says_its_output_gets_a_loss() {
    let learned = changed(&file("mlp"), |file| {
        let fields = file.as_object_mut().unwrap();
        fields.remove("blocks");
        fields.remove("loss");
        let nodes = fields["nodes"].as_array_mut().unwrap();
        nodes.truncate(nodes.len() - 4);
        let output = nodes.last().unwrap()["outputs"][0].clone();
        fields["tensors"].as_array_mut().unwrap().truncate(output.as_u64().unwrap() as usize + 1);
        fields.insert("output".into(), output);
    });
    let (found, expected) = (learned.unwrap().graph(4).unwrap(), named("mlp", 4, 1).unwrap());
    let (found, expected) = (summary(&found).unwrap(), summary(&expected).unwrap());
    assert_eq!(found.parameters, expected.parameters);
    assert_eq!(found.forward_flops, expected.forward_flops);
    assert_eq!(found.backward_flops, expected.backward_flops);
}

/// Written by `thinwire.torch.export_graph`; the Python tests make it again.
const TORCH: &str = include_str!("torch_gpt.json");

#[test]
fn a_gpt_of_torch_is_the_built_one() {
    let file = ModelFile::parse(TORCH).unwrap();
    let name = "gpt:layers=3,width=16,heads=2,vocabulary=40,positions=6";
    for batch in [1, 4] {
        let (found, built) = (file.graph(batch).unwrap(), named(name, batch, 6).unwrap());
        assert_eq!(classes(&found).iter().map(|class| class.blocks.len()).max(), Some(3));
        let (found, built) = (summary(&found).unwrap(), summary(&built).unwrap());
        assert_eq!(found.parameters, built.parameters);
        assert_eq!(found.forward_flops, built.forward_flops);
        assert_eq!(found.backward_flops, built.backward_flops);
    }
}

#[test]
fn a_number_stands_for_all_directions_and_null_for_what_is_usual() {
    let read = |text: &str| serde_json::from_str::<Operator>(text).unwrap();
    let found = read(r#"{"conv2d": {"stride": 2, "padding": 1}}"#);
    assert_eq!(found, Conv2d::square(2, 1).into());
    let found = read(r#"{"pool": {"kind": "max", "size": 3, "stride": [2, 2], "padding": 0}}"#);
    assert_eq!(found, Pool::square(PoolKind::Max, 3, 2, 0).into());
    assert_eq!(read(r#"{"layer_norm": null}"#), LayerNorm::default().into());
    let found = read(r#"{"rms_norm": {"epsilon": 1e-6}}"#);
    assert_eq!(found, RmsNorm(Epsilon { value: 1e-6 }).into());
    let sides =
        Conv2d { padding: [1, 2, 3, 4], dilation: [2, 1], groups: 8, ..Conv2d::square(1, 0) };
    let written = serde_json::to_string(&Operator::from(sides)).unwrap();
    assert_eq!(read(&written), sides.into());
    for (embedding, text) in [
        (Embedding::plain(), r#"{"embedding":null}"#),
        (Embedding { padding: Some(1) }, r#"{"embedding":{"padding":1}}"#),
    ] {
        assert_eq!(read(text), embedding.into());
        assert_eq!(serde_json::to_string(&Operator::from(embedding)).unwrap(), text);
    }
}

/// A change of a file, and what is then said.
type Case = (&'static str, fn(&mut Value));

#[test]
fn what_is_wrong_is_named() {
    let cases: [Case; 18] = [
        ("thinwire_model is 2, expected 1", |file| file["thinwire_model"] = 2.into()),
        ("node 0 'layer.0.linear': unknown variant `lunar`", |file| {
            file["nodes"][0]["operator"] = json!({ "lunar": null });
        }),
        ("node 0 'layer.0.linear': input is tensor 99, expected one of the", |file| {
            file["nodes"][0]["inputs"][0] = 99.into();
        }),
        ("it reads tensor 4 'layer.0.linear', which no node before it writes", |file| {
            file["nodes"][0]["inputs"][0] = 4.into();
        }),
        ("its output 'layer.0.linear' is Float of shape [2, 512], expected Float of", |file| {
            file["tensors"][2]["shape"] = json!([784, 100]);
            file["tensors"][3]["shape"] = json!([100]);
        }),
        ("blocks have 8 nodes in total, expected 9", |file| {
            file["blocks"][0]["nodes"] = 1.into();
        }),
        ("block 0 'empty' has 0 nodes, expected 1 or more", |file| {
            let empty = json!({ "name": "empty", "nodes": 0 });
            file["blocks"].as_array_mut().unwrap().insert(0, empty);
        }),
        ("a shape of 100000 dimensions, expected at most 16", |file| {
            file["tensors"][0]["shape"] = vec![1; 100_000].into();
        }),
        ("the number 4294967296, expected at most 1073741824", |file| {
            file["tensors"][0]["shape"][1] = 4_294_967_296_u64.into();
        }),
        ("the loss has shape [2, 784], expected one element", |file| file["loss"] = 0.into()),
        ("a sequence of 0, expected 1 to 1073741824", |file| file["sequence"] = 0.into()),
        ("a sequence of 9223372036854775808, expected 1 to", |file| {
            file["sequence"] = (1_u64 << 63).into();
        }),
        ("layer.0.linear.weight: a parameter of element Index, expected Float", |file| {
            file["tensors"][2]["element"] = "index".into();
        }),
        ("layer.0.linear.weight: a deviation of -1e308, expected 0 to 1000", |file| {
            file["tensors"][2]["role"] = json!({ "parameter": { "normal": -1e308 } });
        }),
        ("idle: the loss does not depend on this parameter, expected only", |file| {
            let mut idle = file["tensors"][2].clone();
            idle["name"] = "idle".into();
            file["tensors"].as_array_mut().unwrap().push(idle);
        }),
        ("two parameters are called 'layer.0.linear.weight', expected a name for each", |file| {
            file["tensors"][3]["name"] = "layer.0.linear.weight".into();
        }),
        ("two nodes are called 'layer.0.linear', expected a name for each", |file| {
            file["nodes"][1]["name"] = "layer.0.linear".into();
        }),
        ("two blocks are called 'layer.0', expected a name for each", |file| {
            file["blocks"][1]["name"] = "layer.0".into();
        }),
    ];
    for (expected, change) in cases {
        let error = refusal(change);
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
    let other = changed(&file("gpt2"), |file| file["sequence"] = 7.into());
    let error = other.unwrap().graph(2).unwrap_err();
    assert_eq!(error.to_string(), "sequence is 7, expected 16, the length of input 'tokens'");
    assert!(error.hint().unwrap().starts_with("thinwire model show NAME --output "), "{error:?}");
    let error = ModelFile::parse("{ \"thinwire_model\": 1,").unwrap_err().to_string();
    assert!(error.starts_with("it is no JSON: EOF"), "{error}");
}

#[test]
fn numbers_that_an_operator_cannot_mean_are_refused() {
    let told = |name: &str, operator: &str, number: Value| {
        let change = |file: &mut Value| {
            let nodes = file["nodes"].as_array_mut().unwrap();
            let node = nodes.iter_mut().find(|node| !node["operator"][operator].is_null());
            let told = &mut node.unwrap_or_else(|| panic!("{name} has no {operator}"))["operator"];
            match number {
                Value::Object(fields)
                    if told[operator].is_object() && !fields.contains_key("one_over") =>
                {
                    fields.into_iter().for_each(|(key, value)| told[operator][key] = value);
                }
                number => told[operator] = number,
            }
        };
        let read = changed(&file(name), change);
        let read = read.and_then(|file| file.graph(2).map_err(|error| error.to_string()));
        read.map(|_| "accepted".to_owned()).unwrap_or_else(|error| error)
    };
    for (name, operator, number, expected) in [
        ("gpt2", "layer_norm", json!({"epsilon": -1}), "epsilon is -1.0, expected 0.0 to 1000.0"),
        ("gpt2", "layer_norm", json!({"epsilon": 1e9}), "epsilon is 1000000000.0, expected"),
        ("gpt2", "layer_norm", json!({"epsilon": null}), "invalid type: null"),
        ("gpt2", "layer_norm", json!({"epsilon": 0}), "accepted"),
        ("llama2-7b", "rms_norm", json!({"epsilon": -1e-9}), "epsilon is -1e-9, expected"),
        ("resnet50", "batch_norm", json!({"epsilon": -1}), "epsilon is -1.0, expected"),
        (
            "llama2-7b",
            "rotary",
            json!({"base": 0}),
            "base is 0.0, expected 1e-6 to 1000000000000.0",
        ),
        ("llama2-7b", "rotary", json!({"base": -1e4}), "base is -10000.0, expected"),
        ("llama2-7b", "rotary", json!({"head_size": 0}), "expected a multiple of 0"),
        ("llama2-7b", "attention", json!({"head_size": 0}), "expected a multiple of 0"),
        ("llama2-7b", "attention", json!({"queries_per_key": 0}), "expected a multiple of 0"),
        ("llama2-7b", "attention", json!({"queries_per_key": -1}), "invalid value: integer `-1`"),
        ("gpt2", "scale", json!(1e300), "factor is 1e300, expected -3.4028234663852886e38 to"),
        ("gpt2", "scale", json!({"one_over": {"batch": 0}}), "the batch times 0, expected a whole"),
        ("gpt2", "scale", json!({"one_over": {"batch": -2}}), "the batch times -2, expected a"),
        (
            "gpt2",
            "scale",
            json!({"one_over": {}}),
            "one over {}, expected a whole number of at least 1",
        ),
        ("moe-small", "route", json!({"chosen": 0}), "a token goes to 0 experts, expected 1 to 8"),
        ("moe-small", "dispatch", json!({"capacity": 0}), "expected"),
        ("resnet50", "conv2d", json!({"stride": 0}), "with stride 0"),
        ("resnet50", "conv2d", json!({"dilation": 0}), "have no window of"),
        ("resnet50", "conv2d", json!({"groups": 0}), "expected a multiple of 0"),
        ("resnet50", "pool", json!({"size": 0}), "have no window of"),
        ("resnet50", "pool", json!({"stride": 0}), "with stride 0"),
    ] {
        let error = told(name, operator, number);
        assert!(error.contains(expected) && !error.contains('\n'), "{operator}: {error}");
    }
    let padded = |padding: Value| {
        changed(&file("gpt2"), |file| {
            let nodes = file["nodes"].as_array_mut().unwrap();
            let node = nodes.iter_mut().find(|node| node["operator"].get("embedding").is_some());
            node.unwrap()["operator"]["embedding"] = padding;
        })
        .and_then(|file| file.graph(2).map_err(|error| error.to_string()))
    };
    assert!(padded(json!({"padding": 50256})).is_ok());
    let error = padded(json!({"padding": 50257})).unwrap_err();
    assert!(error.ends_with("padding row 50257, expected one of 50257 rows"), "{error}");
    assert!(padded(json!({})).unwrap_err().contains("missing field `padding`"));
    for rate in [json!(-0.1), json!(1)] {
        let error = refusal(|file| {
            let nodes = file["nodes"].as_array_mut().unwrap();
            let node = nodes.iter_mut().find(|node| !node["operator"]["activation"].is_null());
            node.unwrap()["operator"] = json!({"dropout": {"rate": rate, "stream": 1}});
        });
        assert!(error.contains(&format!("rate is {rate}, expected 0 or more and less")), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_changed_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let text = file("mlp").text();
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(file) = ModelFile::parse(&String::from_utf8_lossy(&bytes)) {
            let _ = file.graph(2).map(|graph| summary(&graph).map(|_| ()));
        }
    }
}

/// The refusal of a text.
fn refused(text: &str) -> String {
    let error = ModelFile::parse(text).and_then(|file| file.graph(2)).unwrap_err().to_string();
    assert!(!error.contains(char::is_control) && error.len() < 500, "{error:?}");
    error
}

#[test]
fn texts_made_to_mislead_or_to_break_a_parser_are_refused() {
    let text = file("mlp").text();
    let twice = text.replacen("\"nodes\": ", "\"nodes\": [], \"nodes\": ", 1);
    assert!(refused(&twice).contains("the field \"nodes\" is given twice"), "{}", refused(&twice));
    let inner = text.replacen("\"shape\":", "\"shape\":[1],\"shape\":", 1);
    assert!(refused(&inner).contains("the field \"shape\" is given twice"), "{}", refused(&inner));
    let deep = format!("{{\"thinwire_model\": 1, \"name\": {}", "[".repeat(100_000));
    assert!(refused(&deep).starts_with("it is no JSON: recursion limit exceeded"));
    let named = text.replacen("\"mlp\"", "\"a\\u001b[2J\"", 1);
    let expected = "the name 'a\\u{1b}[2J' has control characters, expected none";
    assert_eq!(refused(&named), expected);
    let field = text.replacen("\"name\"", "\"na\\u0007me\"", 1);
    assert!(
        refused(&field).starts_with("the name 'na\\u{7}me' has control"),
        "{}",
        refused(&field)
    );
    for length in ["18446744073709551615", "1e400", "-1", "4611686018427387904"] {
        let huge = text.replacen("\"shape\":[", &format!("\"shape\":[{length},"), 1);
        assert!(!refused(&huge).is_empty());
    }
}
