//! The first file of a checkpoint: where training stands, and what the other files must be.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thinwire_model::check_keys;
use thinwire_wire::{WORLD_SIZE_MAX, checksum};

use super::names::is_token;
use crate::data::Position;

/// The version of the layout that this build writes, and the only one it reads.
pub const FORMAT: u32 = 1;

/// Where training stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The next step.
    pub step: u64,
    /// Updates of the optimiser: steps that were not skipped.
    pub updates: u64,
    /// The sampler's position.
    pub position: Position,
    /// The seed of everything random.
    pub seed: u64,
    /// The number of ranks.
    pub world: u32,
    /// The corpus' fingerprint.
    pub data: String,
    /// The model's size and the settings of training, as the caller keeps them.
    pub config: Value,
    /// The exchange's plan, as the exchange keeps it.
    pub plan: String,
}

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCheck {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the content.
    pub crc32: u32,
}

/// The contents of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the layout.
    pub format: u32,
    /// Where training stands.
    #[serde(flatten)]
    pub progress: Progress,
    /// Every other file.
    pub files: BTreeMap<String, FileCheck>,
    /// Folder with these files in that of the manifest, if they are not beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

/// Longest manifest that is read.
pub(super) const MANIFEST_BYTES_MAX: u64 = 1 << 28;
const CHECKSUM: &str = "crc32";
/// The highest count in a manifest: beyond any training, and small enough that 1 can be added.
const COUNT_MAX: u64 = 1 << 53;

impl FileCheck {
    pub(super) fn of(bytes: &[u8]) -> FileCheck {
        FileCheck { bytes: bytes.len() as u64, crc32: checksum(bytes) }
    }
}

impl Manifest {
    /// The manifest as JSON, with a checksum of itself.
    pub(super) fn to_text(&self) -> String {
        let mut value = serde_json::to_value(self).expect("a manifest has only string keys");
        value[CHECKSUM] = Value::from(checksum(value.to_string().as_bytes()));
        format!("{value:#}\n")
    }

    /// The format of a text that a later version of this program has written.
    pub(super) fn newer_format(text: &[u8]) -> Option<u64> {
        let value: Value = serde_json::from_slice(text).ok()?;
        value.get("format").and_then(Value::as_u64).filter(|format| *format > u64::from(FORMAT))
    }

    /// Reads a manifest; the error says what is wrong with it.
    pub(super) fn from_text(text: &[u8]) -> Result<Manifest, String> {
        let mut value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let found = value.get("format").and_then(Value::as_u64);
        if found != Some(u64::from(FORMAT)) {
            let found = found.map_or("none".to_owned(), |found| found.to_string());
            return Err(format!("format {found}, expected {FORMAT}"));
        }
        let sealed = value.as_object_mut().and_then(|fields| fields.remove(CHECKSUM));
        let expected = checksum(value.to_string().as_bytes());
        if sealed != Some(Value::from(expected)) {
            let found = sealed.map_or("none".to_owned(), |found| found.to_string());
            return Err(format!("checksum {found}, expected {expected}"));
        }
        check_keys(text)?;
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| error.to_string())?;
        manifest.progress.check()?;
        match manifest.folder.as_deref().filter(|folder| !is_token(folder)) {
            None => Ok(manifest),
            Some(folder) => Err(format!("folder '{folder}', expected hexadecimal digits")),
        }
    }
}

impl Progress {
    /// Refuses numbers that no training reaches.
    fn check(&self) -> Result<(), String> {
        let Position { pass, index } = self.position;
        let counts =
            [("step", self.step), ("updates", self.updates), ("epoch", pass), ("index", index)];
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > COUNT_MAX) {
            return Err(format!("{name} is {count}, expected at most {COUNT_MAX}"));
        }
        if !(1..=WORLD_SIZE_MAX).contains(&self.world) {
            return Err(format!("world is {}, expected 1 to {WORLD_SIZE_MAX}", self.world));
        }
        Ok(())
    }
}
