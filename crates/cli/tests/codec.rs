//! Codecs of one's own from the command line: what is refused, with which exit code, and what is shown of it.

mod support;

use support::Folder;

const ONEBIT: &str = include_str!("../../../examples/codecs/onebit.codec");

/// Where in it the test's mistake is: line, column and what is said.
const MISTAKE: &str = "no function is called 'men'; did you mean 'mean'?";

fn broken(folder: &Folder) -> [String; 2] {
    let text = ONEBIT.replace("mean(abs(x))", "men(abs(x))");
    std::fs::write(folder.path().join("broken.codec"), &text).unwrap();
    let at = text.lines().position(|line| line.contains("men(")).unwrap();
    let line = text.lines().nth(at).unwrap();
    let (number, column) = (at + 1, line.find("men(").unwrap());
    let margin = " ".repeat(number.to_string().len());
    let excerpt =
        format!("{number} | {line}\n{margin} | {}^\n", " ".repeat(line[..column].chars().count()));
    [format!("broken.codec:{number}:{}: {MISTAKE}", column + 1), excerpt]
}

#[test]
fn the_answer_no_is_1_and_an_error_is_2() {
    let folder = Folder::new("codec-answers");
    let [refusal, excerpt] = broken(&folder);
    let ended = folder.run(&["codec", "check", "broken.codec"]);
    assert_eq!((ended.code, ended.stderr), (Some(1), format!("refused: {refusal}\n{excerpt}")));
    std::fs::write(folder.path().join("good.codec"), ONEBIT).unwrap();
    for (codec, expected) in [
        ("gone.codec", "cannot read codec gone.codec: "),
        (".", "unknown codec '.', expected one of "),
        ("zip", "unknown codec 'zip', expected one of "),
        ("topk:2", "topk ratio '2', expected a number above 0 and at most 1"),
        ("good.codec:t=1", "good.codec: unknown parameter 't', the codec has none"),
        ("good.codec:t=1,t=2", "good.codec parameter t is given twice, as 1 and 2"),
    ] {
        let ended = folder.run(&["codec", "check", codec]);
        assert!(ended.error().starts_with(&format!("error: {expected}")), "{}", ended.stderr);
    }
}

#[test]
fn what_cannot_be_checked_alone_says_what_it_is() {
    let folder = Folder::new("codec-alone");
    for (codec, what, hint) in [
        (
            "powersgd:4",
            "sends sums over ranks of two thin factors",
            "thinwire codec bench powersgd:4",
        ),
        ("intsgd", "sends sums of integers under a scale", "thinwire codec bench intsgd"),
        (
            "auto",
            "is not a codec: it chooses a codec for every bucket",
            "check the codecs that it chooses from",
        ),
        (
            "auto:int8",
            "is not a codec: it chooses a codec for every bucket",
            "check the codecs that it chooses",
        ),
    ] {
        let ended = folder.run(&["codec", "check", codec]);
        assert!(ended.error().starts_with(&format!("error: {codec} {what}")), "{}", ended.stderr);
        assert!(ended.hint().starts_with(&format!("hint: {hint}")), "{}", ended.stderr);
    }
}

#[test]
fn the_place_is_shown_wherever_a_text_is_refused() {
    let folder = Folder::new("codec-places");
    let [refusal, excerpt] = broken(&folder);
    for ended in [
        folder.run(&["codec", "bench", "broken.codec"]),
        folder.run(&["bench", "codec", "--codecs", "none,broken.codec"]),
        folder.train(&["--codec", "broken.codec"]),
        folder.train(&["--codec", "auto:broken.codec"]),
    ] {
        assert!(ended.error().ends_with(&refusal), "{}", ended.stderr);
        assert!(ended.stderr.contains(&excerpt), "{}", ended.stderr);
    }
}

#[test]
fn bytes_that_only_fill_up_are_told_of() {
    let folder = Folder::new("codec-padding");
    for (block, note) in [(128, ""), (64, ", 131072 of them only fill up")] {
        let text = ONEBIT.replace("block 128", &format!("block {block}"));
        std::fs::write(folder.path().join("mine.codec"), text).unwrap();
        let shown = folder.run(&["codec", "check", "mine.codec"]).done();
        let length = shown.lines().find(|line| line.starts_with("length ")).unwrap();
        assert!(length.contains(&format!(" bytes for 1048576 elements{note}")), "{length}");
        assert_eq!(length.contains("fill up"), block != 128, "{length}");
    }
}

#[test]
fn a_text_with_blocks_is_printed_for_a_device_and_checked_there() {
    let folder = Folder::new("codec-device");
    std::fs::write(folder.path().join("mine.codec"), ONEBIT).unwrap();
    let source = folder.run(&["codec", "emit", "--cuda", "mine.codec"]).done();
    assert!(
        source.contains("#include \"language.hpp\"") && source.contains("PROGRAM(encode_onebit_")
    );
    let shown = folder.run(&["codec", "check", "mine.codec"]).done();
    let line = shown.lines().find(|line| line.starts_with("device source ")).unwrap();
    let known = [
        "checked on a device",
        "checked in the host build",
        "not checked: no C++ compiler and no device",
    ];
    assert!(known.iter().any(|known| line.ends_with(known)), "{line}");

    std::fs::write(folder.path().join("mine.codec"), ONEBIT.replace("block 128\n", "")).unwrap();
    let ended = folder.run(&["codec", "emit", "--cuda", "mine.codec"]);
    let why =
        "no kernels, runs on the host: a codec without a line 'block' works on whole tensors\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), why));
    let ended = folder.run(&["codec", "emit", "--cuda", "int8"]);
    assert!(ended.error().starts_with("error: codec int8 is built in"), "{}", ended.stderr);
}

#[test]
fn a_feedback_of_nothing_is_refused() {
    let folder = Folder::new("codec-feedback");
    for codec in ["none", "intsgd", "int8:stochastic"] {
        let ended = folder.train(&["--codec", codec, "--feedback", "ef21"]);
        let expected = format!(
            "--feedback ef21 has no effect with codec {codec}, which leaves nothing to feed back"
        );
        assert_eq!(ended.error(), format!("error: {expected}"));
    }
}

#[test]
fn momentum_is_not_dropped_in_silence() {
    let folder = Folder::new("codec-momentum");
    let flags = ["--codec", "topk:0.05", "--steps", "4", "--ranks", "2"];
    folder.train(&[&flags[..], &["--momentum-correction", "0.9"]].concat()).done();
    let resumed = ["--steps", "8", "--resume", "thinwire-checkpoints"];
    let ended = folder.train(&resumed);
    assert!(!ended.stderr.contains("momentum"), "{}", ended.stderr);
    ended.done();
    let ended = folder.train(
        &[
            &resumed[..2],
            &["--resume", "thinwire-checkpoints/step-000004", "--momentum-correction", "0.8"],
        ]
        .concat(),
    );
    let said = "momentum correction 0.8 instead of 0.9";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    ended.done();
}

const TERNGRAD: &str = include_str!("../../../examples/codecs/terngrad.codec");

#[test]
fn speeds_stand_beside_those_of_the_nearest_codec_and_of_a_copy() {
    let folder = Folder::new("codec-speeds");
    for (name, text, nearest) in [("bits", ONEBIT, "onebit"), ("three", TERNGRAD, "terngrad")] {
        let file = format!("{name}.codec");
        std::fs::write(folder.path().join(&file), text).unwrap();
        let shown = folder.run(&["codec", "check", &file]).done();
        for row in ["encode with residual", "decode"] {
            let line = shown.lines().find(|line| line.starts_with(row)).unwrap();
            assert!(line.contains(&format!("({nearest} ")) && line.contains("a copy "), "{line}");
        }
    }
    let shown = folder.run(&["codec", "check", "int8", "--json"]).done();
    assert!(
        shown.contains("\"nearest\":null") && shown.contains("\"copy_bytes_per_s\":"),
        "{shown}"
    );
}

#[test]
fn feedback_of_more_than_there_was_gets_a_warning() {
    let folder = Folder::new("codec-growth");
    let text = TERNGRAD.lines().filter(|line| !line.starts_with("variance"));
    let text = text.collect::<Vec<_>>().join("\n").replace("block 128", "block 128\nfeedback");
    std::fs::write(folder.path().join("three.codec"), text).unwrap();
    let flags = ["--codec", "three.codec", "--steps", "2"];
    for ended in [folder.run(&["codec", "check", "three.codec"]), folder.train(&flags)] {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let warnings =
            ended.stderr.lines().filter(|line| line.starts_with("warning: codec three#"));
        assert_eq!(warnings.count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains("(a contraction of -0."), "{}", ended.stderr);
    }
}

/// Writes a codec that claims to be unbiased and is not.
fn write_biased(folder: &Folder) {
    let text = TERNGRAD.replace("digits_up(max(abs(x)), 17)", "digits(max(abs(x)), 9)");
    // Wide enough for what the cut scale changes, so that only the mean is wrong.
    let text = text.replace("variance min", "variance 1 + min");
    std::fs::write(folder.path().join("three.codec"), text).unwrap();
}

#[test]
fn a_claim_that_fails_is_told_in_words() {
    let folder = Folder::new("codec-claims");
    write_biased(&folder);
    let ended = folder.run(&["codec", "check", "three.codec"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let law = "random rounding is right in the mean";
    let line = ended.stdout.lines().find(|line| line.starts_with(&format!("broken: {law}: ")));
    let line = line.expect(&ended.stdout);
    let said = "claims to be unbiased, but the mean of 3000 encodings differs from element ";
    assert!(
        line.contains(said) && line.ends_with(" standard errors (at most 5 expected)"),
        "{line}"
    );
}

#[test]
fn a_training_refuses_a_codec_that_breaks_a_law() {
    let folder = Folder::new("codec-laws");
    write_biased(&folder);
    let flags = ["--codec", "three.codec", "--steps", "2", "--ranks", "2"];
    let ended = folder.train(&flags);
    let law =
        "breaks a law: random rounding is right in the mean: claims to be unbiased, but the mean";
    assert!(ended.error().contains(law), "{}", ended.stderr);
    assert!(ended.stderr.contains("unchecked trains with the codec"), "{}", ended.stderr);
    folder.train(&[&flags[..], &["--unchecked"]].concat()).done();
    std::fs::write(folder.path().join("sound.codec"), ONEBIT).unwrap();
    folder.train(&["--codec", "sound.codec", "--steps", "2", "--ranks", "2"]).done();
}
