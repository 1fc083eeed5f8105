//! Manifest of a checkpoint: the record of its owner, and the length and checksum of every other file.
//!
//! It is written last, so a folder with a manifest is complete. Law: reading gives the manifest that was
//! written, or an error in one line that says what is wrong with it.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thinwire_link::Token;
use thinwire_model::check_keys;
use thinwire_wire::checksum;

use crate::error::{Error, Kind};

/// Name of the file.
pub const MANIFEST: &str = "manifest.json";
/// Longest manifest that is read.
pub const MANIFEST_BYTES_MAX: u64 = 1 << 28;
/// Shortest name, in letters, of a folder of files within the folder of a checkpoint.
pub(crate) const TOKEN_LETTERS: usize = 16;

const CHECKSUM: &str = "crc32";
const FORMAT: &str = "format";
const FILES: &str = "files";
const FOLDER: &str = "folder";

/// Numbered checkpoints of one kind in a folder or bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Checkpoints of a training, by step. A checkpoint of the same step is replaced.
    Steps,
    /// Snapshots of parameter servers. They are never replaced.
    Snapshots,
}

impl Series {
    /// Returns the prefix of all names.
    pub fn prefix(self) -> &'static str {
        match self {
            Series::Steps => "step-",
            Series::Snapshots => "snapshot-",
        }
    }

    /// Returns the noun for an item of the series.
    pub fn noun(self) -> &'static str {
        match self {
            Series::Steps => "checkpoint",
            Series::Snapshots => "snapshot",
        }
    }

    /// Returns the name of the folder with this number.
    pub fn name(self, number: u64) -> String {
        format!("{}{number:06}", self.prefix())
    }

    /// Returns the number of the folder with this name.
    pub fn number_of(self, name: &str) -> Option<u64> {
        let number = name.strip_prefix(self.prefix())?.parse().ok()?;
        (self.name(number) == name).then_some(number)
    }

    /// Returns the folder of the files that the manifest in `parent` names as `folder`.
    pub(crate) fn files(self, parent: &str, folder: &str) -> String {
        match self {
            Series::Steps if !parent.is_empty() => format!("{parent}/{folder}"),
            // Those of a snapshot are beside its manifest's folder.
            Series::Steps | Series::Snapshots => folder.to_owned(),
        }
    }
}

/// The part of a manifest that its owner defines.
pub trait Record: Serialize + DeserializeOwned {
    /// Version of the format that this build writes, and the only one that it reads.
    const FORMAT: u32;
    /// Series of the checkpoints.
    const SERIES: Series;

    /// Refuses values that no writer would record; the error is one line.
    ///
    /// # Errors
    /// If the record has such values.
    fn check(&self) -> Result<(), String>;

    /// Returns whether a checkpoint may have a file with this name. When a checkpoint is replaced, such files
    /// are removed.
    fn is_file(name: &str) -> bool;
}

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCheck {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the content.
    pub crc32: u32,
}

impl FileCheck {
    /// Returns length and checksum of these bytes.
    pub fn of(bytes: &[u8]) -> FileCheck {
        FileCheck { bytes: bytes.len() as u64, crc32: checksum(bytes) }
    }
}

/// Content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest<T> {
    /// The owner's record.
    pub record: T,
    /// Length and checksum of every other file, by name.
    pub files: BTreeMap<String, FileCheck>,
    /// Folder with the other files, if they are not in the folder of the manifest.
    pub folder: Option<String>,
}

impl<T: Record> Manifest<T> {
    /// Creates the manifest for files in its own folder.
    pub fn new(record: T, files: BTreeMap<String, FileCheck>) -> Manifest<T> {
        Manifest { record, files, folder: None }
    }

    /// Returns the manifest as JSON, including its own checksum.
    pub fn to_text(&self) -> String {
        let mut value = self.to_value();
        value[CHECKSUM] = checksum(value.to_string().as_bytes()).into();
        format!("{value:#}\n")
    }

    /// Returns the checksum in the manifest.
    pub fn checksum(&self) -> u32 {
        checksum(self.to_value().to_string().as_bytes())
    }

    fn to_value(&self) -> Value {
        let json = "a manifest has only string keys";
        let mut value = serde_json::to_value(&self.record).expect(json);
        value[FORMAT] = T::FORMAT.into();
        value[FILES] = serde_json::to_value(&self.files).expect(json);
        self.folder.iter().for_each(|folder| value[FOLDER] = folder.clone().into());
        value
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// If it is damaged or is not a manifest. The error is one line of text.
    pub fn from_text(text: &[u8]) -> Result<Manifest<T>, String> {
        let value: Value = serde_json::from_slice(text).map_err(line)?;
        let (found, expected) = (value.get(FORMAT), T::FORMAT);
        if found != Some(&expected.into()) {
            return Err(format!("format {}, expected {expected}", or_none(found)));
        }
        let mut value = unsealed(value)?;
        check_keys(text).map_err(line)?;
        let fields = value.as_object_mut().expect("it has a format");
        let mut take = |name: &str| fields.remove(name).unwrap_or_default();
        take(FORMAT);
        let files = serde_json::from_value(take(FILES)).map_err(line)?;
        let folder: Option<String> = serde_json::from_value(take(FOLDER)).map_err(line)?;
        let record: T = serde_json::from_value(value).map_err(line)?;
        record.check()?;
        match folder.as_deref().filter(|folder| T::SERIES == Series::Steps && !is_token(folder)) {
            Some(folder) => Err(format!("folder '{folder}', expected hexadecimal digits")),
            None => Ok(Manifest { record, files, folder }),
        }
    }

    /// Returns the format of a manifest that a later version of this program has written.
    pub(crate) fn newer_format(text: &[u8]) -> Option<u64> {
        let value: Value = serde_json::from_slice(text).ok()?;
        value.get(FORMAT)?.as_u64().filter(|format| *format > u64::from(T::FORMAT))
    }
}

/// Returns the folder that a valid manifest names.
pub(crate) fn folder_in(text: &[u8]) -> Option<String> {
    let value = unsealed(serde_json::from_slice(text).ok()?).ok()?;
    Some(value.get(FOLDER)?.as_str()?.to_owned())
}

/// Returns the checksum of a manifest, and so of the whole checkpoint, if it is valid.
pub(crate) fn crc32_of(text: &[u8]) -> Option<u32> {
    unsealed(serde_json::from_slice(text).ok()?).ok()?;
    Some(checksum(text))
}

/// Returns a manifest without its own checksum, after comparing the checksum.
fn unsealed(mut value: Value) -> Result<Value, String> {
    let found = value.as_object_mut().and_then(|fields| fields.remove(CHECKSUM));
    let expected = checksum(value.to_string().as_bytes());
    match found == Some(expected.into()) {
        true => Ok(value),
        false => Err(format!("checksum {}, expected {expected}", or_none(found.as_ref()))),
    }
}

fn or_none(found: Option<&Value>) -> String {
    found.map_or("none".to_owned(), Value::to_string)
}

/// Returns random hexadecimal digits that are unique.
pub(crate) fn new_token() -> Result<String, Error> {
    Token::random().map_err(|error| Error::new(Kind::Io, error.to_string()))
}

/// Returns whether a folder in a checkpoint may have this name.
pub(crate) fn is_token(name: &str) -> bool {
    name.len() >= TOKEN_LETTERS && name.bytes().all(|letter| letter.is_ascii_hexdigit())
}

fn line(error: impl ToString) -> String {
    error.to_string().replace(|letter: char| letter.is_control(), " ")
}
