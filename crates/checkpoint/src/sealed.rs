//! Checkpoint or snapshot with a valid manifest. All of its bytes are checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thinwire_wire::checksum;

use crate::error::{Error, Kind};
use crate::manifest::{MANIFEST, MANIFEST_BYTES_MAX, Manifest, Record, Series};
use crate::{Location, PATIENCE, Store, newest};

/// Checkpoint or snapshot with a valid manifest.
#[derive(Clone, Debug)]
pub struct Sealed<T> {
    store: Arc<dyn Store>,
    /// Folder of the manifest in the store; empty if the store is that folder.
    folder: String,
    manifest: Manifest<T>,
    crc32: u32,
}

impl<T: Record> Sealed<T> {
    /// Opens the checkpoint or snapshot whose manifest is in this folder of a store, or in the store itself.
    ///
    /// # Errors
    /// If the manifest is missing or damaged.
    pub fn open(store: Arc<dyn Store>, folder: &str) -> Result<Sealed<T>, Error> {
        let noun = T::SERIES.noun();
        let text = store.read(folder, MANIFEST, MANIFEST_BYTES_MAX).map_err(|why| {
            let message = format!("no {noun} at {}: {why}", store.path(folder, ""));
            Error::new(Kind::Missing, message).with_hint(match T::SERIES {
                Series::Steps => {
                    "give a folder step-NNNNNN, or the folder or bucket that contains it"
                }
                Series::Snapshots => {
                    "give a folder snapshot-NNNNNN, the folder or bucket that contains it, or a \
                     safetensors file"
                }
            })
        })?;
        let file = store.path(folder, MANIFEST);
        if let Some(format) = Manifest::<T>::newer_format(&text) {
            let message = format!("{file} has format {format}, expected {}", T::FORMAT);
            return Err(Error::new(Kind::Damaged, message)
                .with_hint("a newer version of thinwire has written this file: use that version"));
        }
        let manifest = Manifest::from_text(&text).map_err(|why| damaged(T::SERIES, &file, &why))?;
        let folder = folder.to_owned();
        Ok(Sealed { store, folder, manifest, crc32: checksum(&text) })
    }

    /// Opens the checkpoint or snapshot that a user means by a location: the one at this location, or
    /// the newest one in this folder or bucket. A bucket must answer within `patience`.
    ///
    /// # Errors
    /// If there is no checkpoint, or its manifest is damaged.
    pub fn resolve(location: &Location, patience: Duration) -> Result<Sealed<T>, Error> {
        if let (Series::Snapshots, Some((parent, name))) = (T::SERIES, location.split())
            && T::SERIES.number_of(&name).is_some()
        {
            return Sealed::open(parent.store()?, &name);
        }
        let store = location.store_within(patience)?;
        let has_many = match location {
            Location::Folder(path) => path.is_dir() && !path.join(MANIFEST).exists(),
            Location::Bucket(_) => store.list(MANIFEST).is_ok_and(|found| found.is_empty()),
        };
        let number = if has_many { newest(&*store, T::SERIES)? } else { None };
        let folder = number.map_or(String::new(), |number| T::SERIES.name(number));
        Sealed::open(location.store()?, &folder)
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest<T> {
        &self.manifest
    }

    /// Returns the checksum of the manifest, and so of all files.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    /// Returns the path of a file, or of the folder if the name is empty, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        let folder = if name.is_empty() { self.folder.clone() } else { self.files() };
        self.store.path(&folder, name).into()
    }

    /// Returns the folder of the files in the store.
    fn files(&self) -> String {
        let named = self.manifest.folder.as_deref();
        named.map_or(self.folder.clone(), |named| T::SERIES.files(&self.folder, named))
    }

    /// Reads a file, after comparing its length and checksum with the manifest.
    ///
    /// # Errors
    /// If it is missing or damaged, or not in the manifest.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let Some(expected) = self.manifest.files.get(name) else {
            return Err(self.damaged(name, "it is not in the manifest"));
        };
        let bytes = self.store.read(&self.files(), name, expected.bytes).map_err(|why| {
            let noun = T::SERIES.noun();
            let doing = match T::SERIES {
                Series::Steps => "cannot read the checkpoint",
                Series::Snapshots => "corrupt snapshot",
            };
            Error::new(Kind::Damaged, format!("{doing}: {why}"))
                .with_hint(format!("go back to an earlier {noun}"))
        })?;
        if bytes.len() as u64 != expected.bytes {
            let why = format!("{} bytes, expected {}", bytes.len(), expected.bytes);
            return Err(self.damaged(name, &why));
        }
        let (found, expected) = (checksum(&bytes), expected.crc32);
        match found == expected {
            true => Ok(bytes),
            false => {
                Err(self
                    .damaged(name, &format!("checksum {found:#010x}, expected {expected:#010x}")))
            }
        }
    }

    /// Returns the error about a damaged file, or about the whole checkpoint if the name is empty.
    pub fn damaged(&self, name: &str, why: &str) -> Error {
        damaged(T::SERIES, &self.path(name).to_string_lossy(), why)
    }
}

fn damaged(series: Series, path: &str, why: &str) -> Error {
    let noun = series.noun();
    Error::new(Kind::Damaged, format!("corrupt {noun}: {path}: {why}"))
        .with_hint(format!("go back to an earlier {noun}"))
}

/// Returns the newest checkpoint of a training in `place`, a folder or `s3://BUCKET/PREFIX`, if there is one.
///
/// # Errors
/// If the place cannot be read.
pub fn latest(place: &Path) -> Result<Option<PathBuf>, Error> {
    let store = Location::from(place).store_within(PATIENCE)?;
    let number = newest(&*store, Series::Steps)?;
    Ok(number.map(|number| store.path(&Series::Steps.name(number), "").into()))
}
