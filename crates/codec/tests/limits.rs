//! Texts and files that are too large, or no files: refused in one short line.

use thinwire_codec::language::{Text, compile};

/// What is said of a text on a thread with little stack.
fn refusal(source: String) -> (String, String) {
    let compiled = move || {
        let error = compile(&Text { path: "c.codec", source: &source, parameters: &[] });
        let error = error.expect_err("too large");
        (error.to_string(), error.excerpt().unwrap_or_default().to_owned())
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(compiled).unwrap().join().unwrap()
}

fn codec(constants: &str, value: &str) -> String {
    format!("codec c\n{constants}encode x:\n    emit f32 {value}\ndecode:\n    yield take f32\n")
}

/// The most values that a line may have, nested and not.
fn longest_line() -> String {
    let nested = format!("{}x{}", "(".repeat(60), ")".repeat(60));
    format!("{nested}{}", " + 1".repeat(67))
}

#[test]
fn an_expression_is_as_long_as_it_may_be_or_is_refused() {
    let source = codec("", &longest_line());
    let accepted = move || {
        let _ = compile(&Text { path: "c.codec", source: &source, parameters: &[] });
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(accepted).unwrap().join().unwrap();

    let line = "129 values in a line, at most 128; give a part a name of its own";
    for source in [
        codec("", &format!("x{}", "+0".repeat(20_000))),
        codec("", &format!("x{}", "[x]".repeat(20_000))),
        codec(&format!("k = 1{}\n", "+1".repeat(20_000)), "x"),
    ] {
        let (error, _) = refusal(source);
        assert!(error.ends_with(line), "{error}");
    }
}

#[test]
fn a_program_has_no_more_values_than_it_may_have() {
    let constants: String = (0..5000).map(|k| format!("k{k} = 1\n")).collect();
    let (error, _) = refusal(codec(&constants, "x"));
    assert!(error.ends_with("513 values in a program, at most 512"), "{error}");
    let parameters: String = (0..3000).map(|k| format!("param k{k} = 1\n")).collect();
    let (error, _) = refusal(codec(&parameters, "x"));
    assert!(error.ends_with("513 values in a program, at most 512"), "{error}");
    let (error, _) = refusal(codec(&"#\n".repeat(40_000), "x"));
    assert!(error.ends_with("bytes, at most 65536"), "{error}");
}

#[test]
fn names_and_numbers_are_short() {
    for long in ["y".repeat(60_000), "7".repeat(60_000)] {
        let (error, _) = refusal(codec("", &long));
        assert!(error.ends_with("word of 60000 letters, at most 64"), "{error}");
    }
}
