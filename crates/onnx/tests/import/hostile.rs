//! Files made by hand to break a parser are refused in one line each.

use onnx_rs::ast::{DataLocation, DataType, Dimension, StringStringEntry, TensorProto};
use thinwire_onnx::OnnxFile;

use crate::files::{BATCH, Maker, int, mlp};
use crate::wrapped;

/// Wire types of protobuf.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const GROUP: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;

/// Fields, by the messages in which they are: model → graph → node → attribute → graph.
const GRAPH: u8 = 7;
const NODE: u8 = 1;
const ATTRIBUTE: u8 = 5;
const ATTRIBUTE_GRAPH: u8 = 6;

/// The refusal of some bytes.
fn refused(bytes: Vec<u8>) -> String {
    let error = OnnxFile::new(bytes).unwrap_err().to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
    error
}

/// A field of a wire type, with bytes after a length.
fn field(number: u8, wire: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = wrapped(number, bytes);
    field[0] = number << 3 | wire;
    field
}

/// Graphs within attributes within nodes, so many levels of each, all tags of one wire type.
fn nested(levels: usize, wire: u8) -> Vec<u8> {
    let cycle = [ATTRIBUTE_GRAPH, ATTRIBUTE, NODE].into_iter().cycle().take(3 * levels);
    let deep = cycle.fold(Vec::new(), |inner, number| field(number, wire, &inner));
    field(GRAPH, wire, &deep)
}

#[test]
fn messages_of_another_wire_type_are_refused() {
    for wire in [VARINT, FIXED64, GROUP, GROUP_END, FIXED32, 6, 7] {
        let bytes = nested(1_000, wire);
        assert!(bytes.len() < 10_000);
        let expected = format!(
            "it is no ONNX file: field 7 of a message Model at offset 0 has wire type {wire}, \
             expected 2"
        );
        assert_eq!(refused(bytes), expected);
    }
    let path = [GRAPH, NODE, ATTRIBUTE, ATTRIBUTE_GRAPH];
    for depth in 1..path.len() {
        let hidden = field(path[depth], VARINT, &nested(1_000, BYTES));
        let outside = path[..depth].iter().rev();
        let error = refused(outside.fold(hidden, |bytes, number| wrapped(*number, &bytes)));
        assert!(error.ends_with(" has wire type 0, expected 2"), "{error}");
    }
}

#[test]
fn messages_hidden_in_other_fields_are_refused() {
    // To who goes by wire types, the deep graph is the text of a version, of a name or of a number.
    let deep = nested(1_000, BYTES);
    let version = field(1, BYTES, &deep);
    assert!(
        refused(version)
            .ends_with("field 1 of a message Model at offset 0 has wire type 2, expected 0")
    );
    let name = [&[2 << 3 | VARINT][..], &[0], &deep].concat();
    assert!(refused(name).ends_with("has wire type 0, expected 2"));
    let number = wrapped(GRAPH, &wrapped(NODE, &wrapped(ATTRIBUTE, &field(2, BYTES, &deep))));
    assert!(refused(number).ends_with("has wire type 2, expected 5"));
    let dims = wrapped(GRAPH, &wrapped(5, &field(1, FIXED32, &[0; 4])));
    assert!(
        refused(dims)
            .ends_with("field 1 of a message Tensor at offset 4 has wire type 5, expected 0 or 2")
    );
}

#[test]
fn messages_too_deep_or_too_many_are_refused() {
    assert_eq!(refused(nested(22, BYTES)), "messages are nested more than 64 deep");
    assert_eq!(refused(nested(5_000, BYTES)), "messages are nested more than 64 deep");
    let types = [1, 4].into_iter().cycle().take(200);
    let deep = types.fold(Vec::new(), |inner, number| wrapped(number, &inner));
    let input = wrapped(GRAPH, &wrapped(11, &wrapped(2, &deep)));
    assert_eq!(refused(input), "messages are nested more than 64 deep");
    let many = [NODE << 3 | BYTES, 0].repeat((1 << 21) + 1);
    assert_eq!(refused(wrapped(GRAPH, &many)), "more than 2097152 messages");
}

#[test]
fn numbers_that_are_none_are_refused() {
    let none = |reason: &str| format!("it is no ONNX file: {reason}");
    let long = [&[8][..], &[0xff; 10], &[1]].concat();
    assert_eq!(refused(long), none("the number at offset 1 has more than 64 bits"));
    let large = [&[8][..], &[0xff; 9], &[2]].concat();
    assert_eq!(refused(large), none("the number at offset 1 has more than 64 bits"));
    assert_eq!(refused(vec![8, 0x80]), none("cut off at offset 2: 1 bytes expected, 0 left"));
    assert_eq!(refused(vec![0, 1]), none("tag 0 at offset 0 is not that of a field"));
    // Field 7 of a model again, if only the lower 32 bits of its number counted.
    let wide = [&[0xba, 0x80, 0x80, 0x80, 0x80, 0x01][..], &[0]].concat();
    assert!(refused(wide).contains("is not that of a field"));
    let beyond = [&[GRAPH << 3 | BYTES][..], &[0xff; 9], &[1]].concat();
    let error = refused(beyond);
    assert_eq!(error, none("cut off at offset 11: 18446744073709551615 bytes expected, 0 left"));
    let floats = wrapped(GRAPH, &wrapped(5, &wrapped(4, &[0; 5])));
    assert_eq!(refused(floats), none("5 bytes at offset 6, expected numbers of 4"));
}

#[test]
fn a_file_cut_anywhere_never_panics() {
    let whole = mlp(&[4, 6, 3]).bytes();
    for length in 0..whole.len() {
        if let Ok(file) = OnnxFile::new(whole[..length].to_vec()) {
            let _ = file.graph(2, 1);
        }
    }
}

/// The refusal of a file after a change, read or made into a graph.
fn changed(change: impl FnOnce(&mut Maker)) -> String {
    let mut maker = mlp(&[4, 6, 3]);
    change(&mut maker);
    let error = OnnxFile::new(maker.bytes()).and_then(|file| file.graph(2, 1)).unwrap_err();
    let error = error.to_string();
    assert!(!error.contains(char::is_control) && error.len() < 500, "{error:?}");
    error
}

/// A perceptron with something added to its output.
fn added(maker: &mut Maker, what: TensorProto<'static>) {
    let last = maker.graph.node.last().unwrap().output[0];
    let name = "mask";
    maker.graph.initializer.push(what);
    let x = maker.node("Add", &[last, name], Vec::new());
    maker.graph.output.clear();
    maker.output(x);
}

#[test]
fn shapes_that_overflow_are_refused() {
    for shape in [[1 << 40, 1 << 40], [i64::MAX, 2], [1 << 62, 4], [-1, 4], [i64::MIN, 1]] {
        let refused = changed(|maker| {
            maker.graph.initializer[0] =
                TensorProto::from_f32("0.weight", shape.to_vec(), Vec::new());
        });
        assert!(refused.ends_with(" is none of a tensor"), "{refused}");
        let refused = changed(|maker| {
            added(maker, TensorProto::from_f32("mask", shape.to_vec(), Vec::new()))
        });
        assert!(refused.ends_with(" is none of a tensor"), "{refused}");
    }
    for length in [-1, 0, 1 << 31, i64::MAX] {
        let refused = changed(|maker| {
            maker.input("y", DataType::Float, &[BATCH, Dimension::Value(length)]);
        });
        assert!(refused.ends_with(" long, expected 1 to 2147483647"), "{refused}");
    }
}

#[test]
fn numbers_that_are_elsewhere_or_fewer_than_said_are_refused() {
    let few =
        changed(|maker| added(maker, TensorProto::from_f32("mask", vec![2, 3], vec![0.0; 5])));
    assert!(few.ends_with("mask: shape [2, 3] has 5 elements, expected 6"), "{few}");
    let large = changed(|maker| {
        added(maker, TensorProto::from_f32("mask", vec![1 << 20, 1 << 20], Vec::new()))
    });
    assert!(large.contains("a constant of 1099511627776 elements, expected at most"), "{large}");
    // Wherever it points, no other file is opened.
    for path in ["../../../../etc/passwd", "/dev/zero", "weights.bin"] {
        let outside = changed(|maker| {
            let entries = [("location", path), ("offset", "18446744073709551615")];
            let entries = entries.map(|(key, value)| StringStringEntry { key, value });
            let tensor = TensorProto::from_f32("mask", vec![2, 3], Vec::new());
            let tensor = tensor.with_data_location(DataLocation::External);
            added(maker, tensor.with_external_data(entries.to_vec()));
        });
        let expected = format!(
            "mask: its numbers are in '{path}', expected that file next to the model, or export with external_data=False"
        );
        assert!(outside.ends_with(&expected), "{outside}");
    }
}

#[test]
fn external_data_is_a_range_of_a_file_beside_the_model() {
    let external = |entries: &[(&'static str, &'static str)]| {
        let mut maker = mlp(&[4, 6, 3]);
        let entries = entries.iter().map(|(key, value)| StringStringEntry { key, value }).collect();
        let tensor = TensorProto::from_f32("mask", vec![2, 3], Vec::new());
        let tensor = tensor.with_data_location(DataLocation::External);
        added(&mut maker, tensor.with_external_data(entries));
        let found = maker.file().external().map_err(|error| error.to_string());
        found.map(|found| (found[0].file.display().to_string(), found[0].offset, found[0].length))
    };
    let named = ("location", "m.onnx.data");
    assert_eq!(external(&[named]).unwrap(), ("m.onnx.data".to_owned(), 0, 24));
    let found = external(&[named, ("offset", "128"), ("length", "24")]).unwrap();
    assert_eq!(found, ("m.onnx.data".to_owned(), 128, 24));
    for path in ["../m.data", "/dev/zero", "a/b", "..", ".", "", "a\u{1b}[2J/b"] {
        let refused = external(&[("location", path)]).unwrap_err();
        assert!(refused.ends_with("expected a file next to the model"), "{refused}");
        assert!(!refused.contains(char::is_control), "{refused:?}");
    }
    let refused = external(&[named, ("length", "23")]).unwrap_err();
    assert_eq!(refused, "mask: external data of 23 bytes, expected 24");
    let refused = external(&[named, ("offset", "-1")]).unwrap_err();
    assert_eq!(refused, "mask: offset '-1' of external data, expected a number");
}

#[test]
fn names_that_a_terminal_obeys_or_that_stand_twice_are_refused() {
    let bell = "a\u{1b}[2Jb\u{7}";
    let expected = "the name 'a\\u{1b}[2Jb\\u{7}' has control characters, expected none";
    let changes: [fn(&mut Maker, &'static str); 6] = [
        |maker, name| maker.graph.node[0].name = name,
        |maker, name| maker.graph.node[0].input[0] = name,
        |maker, name| maker.graph.node[0].attribute[0].name = name,
        |maker, name| maker.graph.input[0].name = name,
        |maker, name| maker.input("y", DataType::Float, &[Dimension::Param(name)]),
        |maker, name| {
            maker.weight(name, &[2]);
        },
    ];
    for change in changes {
        assert_eq!(changed(|maker| change(maker, bell)), expected);
    }
    let twice = changed(|maker| maker.graph.node[0].attribute.push(int("transB", 0)));
    let expected = "/Gemm_0: two attributes are called 'transB', expected a name for each";
    assert_eq!(twice, expected);
    let twice = changed(|maker| maker.input("x", DataType::Float, &[BATCH, Dimension::Value(5)]));
    assert_eq!(twice, "two inputs are called 'x', expected a name for each");
}
