//! Draft of a snapshot, into which several servers write.
//!
//! A note beside each shard's file has its length and checksum, from which the manifest is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use thinwire_member::Id;
use thinwire_wire::checksum_of_parts;

use super::image::Image;
use super::load::MANIFEST_BYTES_MAX;
use super::manifest::{FileCheck, MANIFEST, Manifest, snapshot_folder};
use super::shard_file::Contents;
use super::store::{Store, newest};
use crate::configuration::{Definition, Layout};
use crate::frontier::Frontier;

/// Largest number of names to try if other jobs write to the same place.
const NAMES_MAX: u64 = 100;
/// Largest length of a note in bytes.
const NOTE_BYTES_MAX: u64 = 1024;

/// Snapshot that is being written.
#[derive(Debug)]
pub struct Draft {
    store: Arc<dyn Store>,
    folder: String,
    definition: Definition,
    layout: Arc<Layout>,
}

impl Draft {
    /// Creates a draft unless another server has, and removes abandoned ones. Its name contains the id of the process
    /// that asked, so jobs never share a draft.
    ///
    /// # Errors
    /// If the store cannot be written to, in one line.
    pub fn create(
        store: Arc<dyn Store>,
        (snapshot, asker): (u64, Id),
        (definition, layout): (Definition, Arc<Layout>),
    ) -> Result<Draft, String> {
        let folder = store.begin(&format!("{asker}-{snapshot}"))?;
        Ok(Draft { store, folder, definition, layout })
    }

    /// Writes the file of a shard from the wire bytes of its tables.
    ///
    /// # Errors
    /// If the file cannot be written, in one line.
    pub fn write(&self, shard: u32, tables: &[u8]) -> Result<(), String> {
        let contents = self.contents(shard);
        let pieces = contents.pieces();
        let images = Image::read_all(tables, pieces, &self.layout.tables);
        let images = images.ok_or_else(|| format!("tables that are none of shard {shard}"))?;
        let file = contents.file();
        contents.write(&images, |parts| {
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            let check = FileCheck { bytes, crc32: checksum_of_parts(parts) };
            let note = serde_json::to_vec(&check).expect("numbers are JSON");
            self.store.write(&self.folder, &file, parts)?;
            self.store.write(&self.folder, &note_of(&file), &[&note])
        })
    }

    /// Publishes the draft with a manifest, once all shards are written. Returns the snapshot's name.
    ///
    /// # Errors
    /// If a file is missing, has another length than its note says, or cannot be written, in one line.
    pub fn seal(self, frontier: Frontier) -> Result<String, String> {
        let shards = 0..self.layout.shards.len() as u32;
        let files = shards.map(|shard| self.check(shard)).collect::<Result<BTreeMap<_, _>, _>>()?;
        files.keys().try_for_each(|file| self.store.remove(&self.folder, &note_of(file)))?;
        let first = newest(&*self.store)?.map_or(1, |newest| newest + 1);
        let about = (self.definition.clone(), &*self.layout);
        let mut manifest = Manifest::new(first, about, frontier, files);
        for number in first..first + NAMES_MAX {
            manifest.number = number;
            if self.store.publish(&self.folder, &mut manifest)? {
                return Ok(snapshot_folder(number));
            }
        }
        Err(format!("no free name for a snapshot in {}", self.store.path("", "")))
    }

    /// Removes the draft, unless it has become a snapshot: whoever seals it may not have got the store's answer.
    pub fn discard(self) {
        if self.is_snapshot() == Ok(false) {
            self.store.discard(&self.folder);
        }
    }

    fn is_snapshot(&self) -> Result<bool, String> {
        let Some(number) = newest(&*self.store)? else { return Ok(false) };
        let text = self.store.read(&snapshot_folder(number), MANIFEST, MANIFEST_BYTES_MAX)?;
        Ok(Manifest::from_text(&text)?.folder.as_deref() == Some(&*self.folder))
    }

    /// Returns the name of a shard's file with the length and checksum in its note, after checking the
    /// length.
    fn check(&self, shard: u32) -> Result<(String, FileCheck), String> {
        let (store, folder) = (&self.store, &self.folder);
        let file = self.contents(shard).file();
        let note = note_of(&file);
        let text = store.read(folder, &note, NOTE_BYTES_MAX);
        let text = text.map_err(|why| format!("{why}; do all servers share the folder?"))?;
        let check: FileCheck = serde_json::from_slice(&text)
            .map_err(|error| format!("{}: {error}", store.path(folder, &note)))?;
        let found = store.length(folder, &file)?;
        match found == check.bytes {
            true => Ok((file, check)),
            false => {
                let path = store.path(folder, &file);
                Err(format!("{path}: {found} bytes, expected {}", check.bytes))
            }
        }
    }

    fn contents(&self, shard: u32) -> Contents<'_> {
        Contents { definition: &self.definition, layout: &self.layout, shard }
    }
}

/// Returns the name of the note beside a shard's file.
fn note_of(file: &str) -> String {
    format!("{}.json", file.rsplit_once('.').map_or(file, |(stem, _)| stem))
}
