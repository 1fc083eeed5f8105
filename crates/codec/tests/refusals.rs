//! Texts that are no codecs, and what is said about them: `testdata/refusals.txt`.
//!
//! A case is its name, the text, a line of dashes, and the error with the line that it is about.
//! `UPDATE_TESTDATA=1 cargo test -p thinwire-codec --test refusals` writes what is said now.

use std::fmt::Write;

use thinwire_codec::Choice;
use thinwire_codec::language::{Text, compile};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/refusals.txt");

/// What is said of a text.
fn said(source: &str) -> String {
    match compile(&Text { path: "c.codec", source, parameters: &[] }) {
        Ok(choice) => format!("{choice} is accepted\n"),
        Err(error) => {
            let excerpt = error.excerpt().map_or(String::new(), |lines| format!("{lines}\n"));
            format!("{error}\n{excerpt}")
        }
    }
}

#[test]
fn refusals_name_the_place_and_say_what_may_help() {
    let cases = std::fs::read_to_string(PATH).unwrap();
    let mut found = String::new();
    for case in cases.split("=== ").skip(1) {
        let (name, rest) = case.split_once('\n').unwrap();
        let (source, _) = rest.split_once("---\n").unwrap();
        write!(found, "=== {name}\n{source}---\n{}", said(source)).unwrap();
    }
    if std::env::var_os("UPDATE_TESTDATA").is_some() {
        std::fs::write(PATH, &found).unwrap();
    }
    assert_eq!(found, cases, "with UPDATE_TESTDATA=1 the file is written anew");
}

#[test]
fn every_error_is_one_line() {
    let cases = std::fs::read_to_string(PATH).unwrap();
    for case in cases.split("=== ").skip(1) {
        let source = case.split_once('\n').unwrap().1.split_once("---\n").unwrap().0;
        assert_eq!(said(source).lines().next().unwrap().matches('\n').count(), 0);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_codec_or_is_refused(lines in proptest::collection::vec("(codec|block|encode x:|decode:|    emit f32|    yield take|param a =|    b = max\\(x|.{0,9}) ?(x|128|f32|u1|-1 \\* x|\\[x\\]|.{0,9})", 0..12)) {
        let source = lines.join("\n");
        match compile(&Text { path: "c.codec", source: &source, parameters: &[] }) {
            Err(error) => proptest::prop_assert!(!error.to_string().contains('\n')),
            // Whatever is accepted becomes kernels, or a reason why not.
            Ok(choice) => {
                if let Choice::Bytes(codec) = choice {
                    proptest::prop_assert!(codec.cuda().is_some());
                }
            }
        }
    }

    #[test]
    fn a_codec_with_a_line_lost_is_a_codec_or_is_refused(line in 0..20usize, other in 0..20usize) {
        let source = include_str!("../../../examples/codecs/dgc.codec");
        let mut lines: Vec<&str> = source.lines().collect();
        if line < lines.len() && other < lines.len() {
            lines.swap(line, other);
            lines.remove(line);
        }
        let _ = compile(&Text { path: "c.codec", source: &lines.join("\n"), parameters: &[] });
    }
}
