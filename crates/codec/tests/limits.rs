//! Texts and files that are too large, or no files: refused in one short line.

use thinwire_codec::language::{Text, compile};
use thinwire_codec::{Choice, Finite, Input};
use thinwire_wire::random::Key;

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

/// A decoder that fails on rare values only is not found before it is used.
#[test]
fn a_decoder_that_is_not_finite_is_reported_with_every_encoding() {
    let source = "codec rare
feedback
encode x:
    emit f32 x
decode:
    v = take f32
    yield select(abs(v) > 1e-10 and abs(v) < 4e-9, sqrt(-abs(v)), v)
";
    let choice = compile(&Text { path: "c.codec", source, parameters: &[] }).unwrap();
    let Choice::Bytes(codec) = choice else { panic!("{choice} has no bytes") };
    let key = Key { seed: 1, step: 2, tensor: 3 };
    for (rare, expected) in [(1e-9, Finite::No), (1e-3, Finite::Yes)] {
        let mut values = vec![0.5; 3000];
        values[2000] = rare;
        let mut bytes = vec![0; codec.encoded_len(3000)];
        assert_eq!(codec.encode(Input::Plain(&values), key, &mut bytes), expected);
        let residual = vec![0.0; 3000];
        let input = Input::Feedback { values: &mut values, residual: &residual };
        assert_eq!(codec.encode(input, key, &mut bytes), expected);
    }
}

#[cfg(unix)]
#[test]
fn a_file_without_end_is_not_read() {
    let folder = std::env::temp_dir().join(format!("thinwire-limits-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("folder.codec")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("zero.codec")).unwrap();
    let sparse = std::fs::File::create(folder.join("sparse.codec")).unwrap();
    sparse.set_len(20 << 30).unwrap();
    for (name, expected) in [
        ("folder.codec", "it is a folder, expected a regular file"),
        ("zero.codec", "it is a pipe or device, expected a regular file"),
        ("sparse.codec", "it has 21474836480 bytes, at most 65536"),
    ] {
        let path = folder.join(name);
        let error = Choice::parse(&path.display().to_string()).unwrap_err().to_string();
        assert_eq!(error, format!("cannot read codec {}: {expected}", path.display()));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_claim_out_of_range_is_refused_as_it_was_made() {
    for (claim, expected) in [
        ("contraction 7", "contraction of 7 for 1 elements, expected 0 to 1"),
        ("contraction -5", "contraction of -5 for 1 elements, expected 0 to 1"),
        ("contraction sqrt(-1)", "contraction of NaN for 1 elements, expected 0 to 1"),
        ("variance -3", "variance of -3 for 1 elements, expected a finite number of 0 or more"),
        (
            "variance sqrt(-1)",
            "variance of NaN for 1 elements, expected a finite number of 0 or more",
        ),
    ] {
        let (error, _) = refusal(codec(&format!("{claim}\n"), "x"));
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn pi_is_a_name_like_any_other() {
    let source = codec("pi = 3.14\n", "x * pi / pi");
    compile(&Text { path: "c.codec", source: &source, parameters: &[] }).unwrap();
}
