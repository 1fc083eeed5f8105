//! The program as the scripts of `bench/` run it.
//!
//! `cargo test` builds the program for these tests; the tests of `bench/run.sh` in Python need it too.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn distortion(file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thinwire-bench"))
        .arg("distortion")
        .arg(file)
        .args(["--codecs", "int8,topk:0.01"])
        .output()
        .unwrap()
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn every_codec_has_a_line_with_its_bits() {
    let bytes: Vec<u8> = (0..4096).flat_map(|i| (i as f32).sin().to_le_bytes()).collect();
    let ended = distortion(&file("sine", &bytes));
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let lines: Vec<serde_json::Value> = ended
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|l| serde_json::from_slice(l).ok())
        .collect();
    let codecs: Vec<_> = lines.iter().map(|line| line["codec"].as_str().unwrap()).collect();
    assert_eq!(codecs, ["int8", "topk:0.01"]);
    let bits = |line: usize| lines[line]["bits"].as_f64().unwrap();
    assert!((8.0..8.5).contains(&bits(0)) && bits(1) < 1.0, "{lines:?}");
}

#[test]
fn a_file_with_a_header_is_refused_in_one_line() {
    let ended = distortion(&file("gradients.npy", b"\x93NUMPY"));
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success());
    assert!(text.starts_with("error: ") && text.contains("is a .npy file"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}
