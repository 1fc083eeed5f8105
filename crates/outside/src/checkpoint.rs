//! Law of checkpoints: a manifest, and files of tensors with valid checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use thinwire_model::Part;
use thinwire_train::Parameter;
use thinwire_train::checkpoint::{Checkpoint, Wanted};
use thinwire_wire::{Rank, checksum};

/// Byte that ends a part of an input, since no text has it.
const END: u8 = 0xff;
/// Files whose headers follow the manifest in an input, in this order.
const FILES: [&str; 5] = [
    "model.safetensors",
    "optimizer.safetensors",
    "exchange-0.safetensors",
    "shard-0.safetensors",
    "shard-1.safetensors",
];
/// Largest number of bytes of the tensors of a file.
const BODY_BYTES_MAX: u64 = 1 << 12;

/// Folder of this process, in memory where the system has such a place.
pub(crate) static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = parent.join(format!("thinwire-outside-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder
});

/// Checks that any manifest and any headers of files, with corrected checksums, are either read as a
/// checkpoint that gives tensors of the requested shapes, or refused with an error of one line.
pub fn checkpoint(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == END);
    let manifest = parts.next().unwrap_or_default();
    let files: Vec<(&str, Vec<u8>)> =
        FILES.into_iter().zip(parts).map(|(name, header)| (name, file(header))).collect();
    for name in FILES {
        let _ = fs::remove_file(FOLDER.join(name));
    }
    for (name, content) in &files {
        fs::write(FOLDER.join(name), content).expect("room for a few kilobytes");
    }
    let manifest = sealed(manifest, &files).unwrap_or_else(|| manifest.to_vec());
    fs::write(FOLDER.join("manifest.json"), manifest).expect("room for a few kilobytes");
    if let Err(error) = load() {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

/// Corrects the lengths and checksums of the files that a manifest names, and its own checksum.
fn sealed(manifest: &[u8], files: &[(&str, Vec<u8>)]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(manifest).ok()?;
    if let Some(named) = value.get_mut("files").and_then(Value::as_object_mut) {
        for (name, content) in files {
            let right = json!({ "bytes": content.len(), "crc32": checksum(content) });
            named.get_mut(*name).into_iter().for_each(|entry| *entry = right.clone());
        }
    }
    value.as_object_mut()?.remove("crc32");
    let sum = checksum(value.to_string().as_bytes());
    value["crc32"] = Value::from(sum);
    Some(value.to_string().into_bytes())
}

/// Returns a file of tensors: the length of the header, the header, and as many bytes as it speaks of.
fn file(header: &[u8]) -> Vec<u8> {
    let ends = |value: &Value| value["data_offsets"][1].as_u64();
    let parsed: Option<Value> = serde_json::from_slice(header).ok();
    let tensors = parsed.as_ref().and_then(Value::as_object).into_iter().flatten();
    let end = tensors.filter_map(|(_, value)| ends(value)).max().unwrap_or(0);
    let body: Vec<u8> = (0..end.min(BODY_BYTES_MAX)).map(|at| at as u8).collect();
    [&(header.len() as u64).to_le_bytes()[..], header, &body].concat()
}

fn load() -> Result<(), thinwire_checkpoint::Error> {
    let checkpoint = Checkpoint::open(&FOLDER)?;
    let parameter =
        |name: &str, shape: &[usize]| Parameter { name: name.to_owned(), shape: shape.to_vec() };
    let parameters = [parameter("w", &[3, 4]), parameter("b", &[4])];
    let outcomes = [
        checkpoint.values(&parameters).map(|values| {
            assert_eq!(values.iter().map(Vec::len).collect::<Vec<_>>(), [12, 4]);
        }),
        checkpoint.exchange(Rank(0)).map(drop),
        checkpoint
            .fill(&mut [wanted("w", &[1..3, 2..4]), wanted("b", std::slice::from_ref(&(0..3)))]),
        checkpoint.fill(&mut [Wanted::new("w.mean".to_owned(), Vec::new())]),
    ];
    outcomes.into_iter().collect()
}

fn wanted(name: &str, parts: &[std::ops::Range<usize>]) -> Wanted {
    let part = |range: &std::ops::Range<usize>| Part { start: range.start, length: range.len() };
    Wanted::new(name.to_owned(), parts.iter().map(part).collect())
}
