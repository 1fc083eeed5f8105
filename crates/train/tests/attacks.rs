//! Malicious checkpoints with valid checksums: each is refused with a one-line reason, before
//! memory or time is spent on it.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use thinwire_model::Part;
use thinwire_train::Parameter;
use thinwire_train::checkpoint::{Checkpoint, Wanted};
use thinwire_wire::{Rank, checksum};

const MODEL: &str = "model.safetensors";
const SHARDS: [&str; 2] = ["shard-0.safetensors", "shard-1.safetensors"];

/// A checkpoint in a folder of its own, which is removed at the end.
struct Made {
    folder: TempDir,
    files: Vec<(String, Vec<u8>)>,
}

impl Made {
    fn new(name: &str, files: &[(&str, Vec<u8>)]) -> Made {
        let folder = TempDir::with_prefix(format!("thinwire-attack-{name}-")).unwrap();
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone()));
        Made { folder, files: files.collect() }
    }

    /// Writes everything, and opens it.
    fn open(&self, change: impl FnOnce(&mut Value)) -> Result<Checkpoint, String> {
        let entry = |bytes: &[u8]| json!({ "bytes": bytes.len(), "crc32": checksum(bytes) });
        let named = self.files.iter().map(|(name, bytes)| (name.clone(), entry(bytes)));
        for (name, bytes) in &self.files {
            fs::write(self.folder.path().join(name), bytes).unwrap();
        }
        let mut manifest = json!({
            "format": 1, "step": 2, "updates": 2, "position": { "epoch": 0, "index": 8 },
            "seed": 1, "world": 2, "data": "text", "config": {}, "plan": "{}",
            "files": named.collect::<serde_json::Map<_, _>>(),
        });
        change(&mut manifest);
        self.open_text(&sealed(manifest))
    }

    fn open_text(&self, manifest: &str) -> Result<Checkpoint, String> {
        fs::write(self.folder.path().join("manifest.json"), manifest).unwrap();
        Checkpoint::open(self.folder.path()).map_err(|error| one_line(&error))
    }
}

fn sealed(mut manifest: Value) -> String {
    let sum = checksum(manifest.to_string().as_bytes());
    manifest["crc32"] = Value::from(sum);
    manifest.to_string()
}

fn one_line(error: &thinwire_checkpoint::Error) -> String {
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 1000, "{line}");
    line
}

/// A file of tensors: a header of any text, and so many bytes.
fn file(header: &str, body_bytes: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![1; body_bytes]].concat()
}

fn tensor(name: &str, shape: &[u64], from: u64, to: u64) -> String {
    format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{from},{to}]}}")
}

fn parameters() -> Vec<Parameter> {
    let one = |name: &str, shape: &[usize]| {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        Parameter { name, shape }
    };
    vec![one("b", &[4]), one("w", &[2, 2])]
}

/// The refusal of a file of a model, which is otherwise in order.
fn refusal(name: &str, content: Vec<u8>) -> String {
    let made = Made::new(name, &[(MODEL, content)]);
    let checkpoint = made.open(|_| ()).unwrap();
    one_line(&checkpoint.values(&parameters()).expect_err("it was not refused"))
}

#[test]
fn tensors_that_do_not_lie_side_by_side_are_refused() {
    let (b, w) = (tensor("b", &[4], 0, 16), tensor("w", &[2, 2], 16, 32));
    let sound = Made::new("sound", &[(MODEL, file(&format!("{{{b},{w}}}"), 32))]);
    assert_eq!(sound.open(|_| ()).unwrap().values(&parameters()).unwrap()[1].len(), 4);
    for (name, header, body) in [
        ("overlap", format!("{{{b},{}}}", tensor("w", &[2, 2], 8, 24)), 24),
        ("same-place", format!("{{{b},{}}}", tensor("w", &[2, 2], 0, 16)), 16),
        ("hole", format!("{{{b},{}}}", tensor("w", &[2, 2], 20, 36)), 36),
        ("behind", format!("{{{b},{w}}}"), 31),
        ("more", format!("{{{b},{w}}}"), 33),
        ("backwards", format!("{{{b},{}}}", tensor("w", &[2, 2], 32, 16)), 32),
        ("far", format!("{{{b},{}}}", tensor("w", &[2, 2], 16, u64::MAX)), 32),
        ("overflow", format!("{{{}}}", tensor("w", &[1 << 32, 1 << 32], 0, 16)), 16),
        ("bytes-overflow", format!("{{{}}}", tensor("w", &[1 << 62], 0, 16)), 16),
        ("short", format!("{{{}}}", tensor("w", &[2, 3], 0, 16)), 16),
        ("no-object", "[]".to_owned(), 0),
        ("deep", format!("{{\"w\":{}", "[".repeat(200_000)), 0),
        ("empty", String::new(), 0),
    ] {
        let found = refusal(name, file(&header, body));
        assert!(found.starts_with("corrupt checkpoint: ") && found.contains(MODEL), "{found}");
    }
}

#[test]
fn a_tensor_that_stands_twice_is_refused() {
    let header = format!("{{{0},{0},{1}}}", tensor("b", &[4], 0, 16), tensor("w", &[2, 2], 16, 32));
    let found = refusal("twice", file(&header, 32));
    assert!(found.contains("the field \"b\" is given twice"), "{found}");
}

#[test]
fn a_header_longer_than_its_file_is_refused() {
    for length in [3, 1 << 20, 1 << 40, u64::MAX] {
        let content = [&length.to_le_bytes()[..], b"{}"].concat();
        let found = refusal(&format!("header-{length}"), content);
        assert!(found.starts_with("corrupt checkpoint: "), "{found}");
    }
    assert!(refusal("cut", vec![2, 0, 0]).starts_with("corrupt checkpoint: "));
}

#[test]
fn a_file_of_holes_takes_no_memory() {
    let made = Made::new("holes", &[(MODEL, Vec::new())]);
    let bytes = 1_u64 << 43;
    let opened = made.open(|manifest| manifest["files"][MODEL]["bytes"] = bytes.into()).unwrap();
    let hollow = fs::File::create(made.folder.path().join(MODEL)).unwrap();
    if hollow.set_len(bytes).is_err() {
        return; // No such long files here.
    }
    let found = one_line(&opened.values(&parameters()).unwrap_err());
    assert!(found.ends_with("8796093022208 bytes, which do not fit in memory"), "{found}");
}

#[test]
fn manifests_of_no_training_are_refused() {
    let made = Made::new("manifest", &[]);
    let most = u64::MAX;
    for (field, value, expected) in [
        ("step", json!(most), "step is 18446744073709551615, expected at most"),
        ("step", Value::Null, "invalid type: null"),
        ("step", json!(-1), "invalid value: integer `-1`"),
        ("step", json!(1e300), "invalid type: floating point `1e+300`"),
        ("updates", json!(most), "updates is 18446744073709551615"),
        ("position", json!({"epoch": most, "index": 0}), "epoch is 18446744073709551615"),
        ("position", json!({"epoch": 0, "index": most}), "index is 18446744073709551615"),
        ("world", json!(0), "world is 0, expected 1 to"),
        ("world", json!(u32::MAX), "world is 4294967295, expected 1 to"),
        ("world", json!(most), "invalid value: integer `18446744073709551615`"),
        ("files", json!([]), "invalid type: sequence"),
        ("format", json!(most), "has format 18446744073709551615, expected 1"),
    ] {
        let found = made.open(|manifest| manifest[field] = value).unwrap_err();
        assert!(found.contains(expected), "{found}");
    }
    assert!(made.open_text(&"[".repeat(200_000)).unwrap_err().contains("recursion limit"));
    assert!(made.open_text("{\"step\": NaN}").unwrap_err().contains("expected value"));
}

#[test]
fn a_manifest_that_says_something_twice_is_refused() {
    let made = Made::new("twice-manifest", &[]);
    let once = {
        made.open(|_| ()).unwrap();
        fs::read_to_string(made.folder.path().join("manifest.json")).unwrap()
    };
    let twice = once.replacen("\"step\":2", "\"step\":900,\"step\":2", 1);
    assert_ne!(once, twice);
    let found = made.open_text(&twice).unwrap_err();
    assert!(found.contains("the field \"step\" is given twice"), "{found}");
}

/// Names in a manifest lead nowhere: a checkpoint's files have names of its own.
#[test]
fn no_name_leads_out_of_the_folder() {
    let made = Made::new("path", &[]);
    let change = |manifest: &mut Value| {
        let entry = json!({ "bytes": 1, "crc32": 0 });
        manifest["files"] = json!({ "../secret": entry, "/etc/passwd": entry, MODEL: entry });
    };
    let opened = made.open(change).unwrap();
    let found = one_line(&opened.values(&parameters()).unwrap_err());
    assert!(found.contains(MODEL) && !found.contains("secret"), "{found}");
    let found = one_line(&opened.exchange(Rank(7)).unwrap_err());
    assert!(found.contains("is not in the checkpoint, which is of 2 ranks"), "{found}");
}

/// The refusal of parts in two files.
fn parts(name: &str, [first, second]: [&str; 2]) -> String {
    let body = |header: &str| file(header, 8 * (header.matches("F32").count()));
    let made = Made::new(name, &[(SHARDS[0], body(first)), (SHARDS[1], body(second))]);
    let checkpoint = made.open(|_| ()).unwrap();
    let part = |length| Part { start: 0, length };
    let mut wanted = [Wanted::new("w".to_owned(), vec![part(2), part(2)])];
    one_line(&checkpoint.fill(&mut wanted).expect_err("it was not refused"))
}

#[test]
fn parts_that_overlap_or_lie_nowhere_are_refused() {
    let row = |at: &str| format!("{{{}}}", tensor(&format!("w@{at}"), &[1, 2], 0, 8));
    let upper = row("0,0");
    for (name, second, expected) in [
        ("again", &row("0,0")[..], "overlaps another part, expected each element once"),
        ("half", &row("0,1"), "overlaps another part"),
        ("outside", &row("2,0"), "2 elements of w, expected 4"),
        ("endless", &row("18446744073709551615,0"), "2 elements of w, expected 4"),
        ("beyond", &row("18446744073709551616,0"), "begins nowhere"),
        ("negative", &row("-1,0"), "begins nowhere"),
        ("word", &row("a,b"), "begins nowhere"),
        ("flat", &row("1"), "has shape [1, 2], expected 2 dimensions"),
        ("nothing", "{}", "2 elements of w, expected 4"),
        ("no-part", &format!("{{{}}}", tensor("w", &[1, 2], 0, 8)), "'w' is no part"),
    ] {
        let found = parts(name, [&upper, second]);
        assert!(found.starts_with("corrupt checkpoint: ") && found.contains(expected), "{found}");
    }
}
