//! Files made by hand to break a parser are refused in one line each.

use thinwire_onnx::OnnxFile;

use crate::files::mlp;
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
    assert_eq!(refused(nested(22, BYTES)), "messages lie more than 64 deep in each other");
    assert_eq!(refused(nested(5_000, BYTES)), "messages lie more than 64 deep in each other");
    let types = [1, 4].into_iter().cycle().take(200);
    let deep = types.fold(Vec::new(), |inner, number| wrapped(number, &inner));
    let input = wrapped(GRAPH, &wrapped(11, &wrapped(2, &deep)));
    assert_eq!(refused(input), "messages lie more than 64 deep in each other");
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
    assert_eq!(refused(vec![0, 1]), none("tag 0 at offset 0 is none of a field"));
    // Field 7 of a model again, if only the lower 32 bits of its number counted.
    let wide = [&[0xba, 0x80, 0x80, 0x80, 0x80, 0x01][..], &[0]].concat();
    assert!(refused(wide).contains("is none of a field"));
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
