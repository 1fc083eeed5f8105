//! Manifest of a snapshot: definition, frontier, and the length and checksum of each file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thinwire_wire::checksum;

use crate::configuration::{Definition, Layout};
use crate::error::line;
use crate::frontier::Frontier;

/// Name of the file.
pub const MANIFEST: &str = "manifest.json";
/// Version of the format of snapshots.
const FORMAT: u32 = 1;
const CHECKSUM: &str = "crc32";

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileCheck {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the content.
    pub crc32: u32,
}

/// Content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    /// Number among the snapshots of its folder.
    pub number: u64,
    /// Tables of the job.
    pub definition: Definition,
    /// Fingerprint of the definition, sixteen hexadecimal digits.
    pub fingerprint: String,
    /// Number of the newest push of each worker in the snapshot.
    pub frontier: Frontier,
    /// Length and checksum of each shard's file, by name.
    pub files: BTreeMap<String, FileCheck>,
    /// Folder with these files beside that of the manifest, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

impl Manifest {
    /// Creates the manifest of a snapshot.
    pub fn new(
        number: u64,
        (definition, layout): (Definition, &Layout),
        frontier: Frontier,
        files: BTreeMap<String, FileCheck>,
    ) -> Manifest {
        let fingerprint = format!("{:016x}", layout.fingerprint);
        Manifest { format: FORMAT, number, definition, fingerprint, frontier, files, folder: None }
    }

    /// Returns the manifest as JSON, including its own checksum.
    pub fn to_text(&self) -> String {
        let mut value = self.to_value();
        value[CHECKSUM] = Value::from(self.checksum());
        format!("{value:#}\n")
    }

    /// Returns the checksum of the manifest.
    pub fn checksum(&self) -> u32 {
        checksum(self.to_value().to_string().as_bytes())
    }

    /// Returns the layout of the tables, whose fingerprint is compared; the error says what is wrong, in one line.
    pub fn layout(&self) -> Result<Layout, String> {
        let layout = self.definition.layout().map_err(|error| error.to_string())?;
        let (found, expected) = (&self.fingerprint, format!("{:016x}", layout.fingerprint));
        match *found == expected {
            true => Ok(layout),
            false => Err(format!("fingerprint {found}, expected {expected}")),
        }
    }

    fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a manifest has only string keys")
    }

    /// Parses a manifest. The error is one line.
    pub fn from_text(text: &[u8]) -> Result<Manifest, String> {
        let said = |error: serde_json::Error| line(&error.to_string());
        let mut value: Value = serde_json::from_slice(text).map_err(said)?;
        let found = value.get("format").cloned().unwrap_or_default();
        if found != FORMAT {
            return Err(format!("format {found}, expected {FORMAT}"));
        }
        let sealed = value.as_object_mut().and_then(|fields| fields.remove(CHECKSUM));
        let expected = checksum(value.to_string().as_bytes());
        if sealed != Some(Value::from(expected)) {
            let found = sealed.unwrap_or_default();
            return Err(format!("checksum {found}, expected {expected}"));
        }
        serde_json::from_value(value).map_err(said)
    }
}

/// Returns the name of a snapshot's folder.
pub fn snapshot_folder(number: u64) -> String {
    format!("snapshot-{number:06}")
}

/// Returns the number of the snapshot whose folder has this name.
pub fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("snapshot-")?.parse().ok()?;
    (snapshot_folder(number) == name).then_some(number)
}
