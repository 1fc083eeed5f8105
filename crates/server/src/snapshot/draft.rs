//! Draft of a snapshot, into which several servers write.
//!
//! A second file for each shard, its note, has the length and checksum of the shard's file. The manifest is
//! made from the notes.

use std::collections::BTreeMap;
use std::sync::Arc;

use thinwire_checkpoint::{Error, FileCheck, Kind, Series, Store, newest};
use thinwire_member::Id;
use thinwire_wire::checksum_of_parts;

use super::image::Image;
use super::manifest::{Contained, Manifest};
use super::shard_file::Contents;
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
    files: thinwire_checkpoint::Draft,
    definition: Definition,
    layout: Arc<Layout>,
}

impl Draft {
    /// Creates a draft, unless another server has created it, and removes abandoned drafts. Its name
    /// contains the id of the process that asked, so jobs never share a draft.
    ///
    /// # Errors
    /// If the store cannot be written to.
    pub fn create(
        store: Arc<dyn Store>,
        snapshot: u64,
        asker: Id,
        definition: Definition,
        layout: Arc<Layout>,
    ) -> Result<Draft, Error> {
        let name = format!("{asker}-{snapshot}");
        let files = thinwire_checkpoint::Draft::of_snapshot(Arc::clone(&store), &name)?;
        Ok(Draft { store, files, definition, layout })
    }

    /// Writes the file of a shard from the wire bytes of its tables.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, shard: u32, tables: &[u8]) -> Result<(), Error> {
        let contents = self.contents(shard);
        let pieces = contents.pieces();
        let images = Image::read_all(tables, pieces, &self.layout.tables);
        let images = images.ok_or_else(|| {
            Error::new(Kind::Invalid, format!("tables that are none of shard {shard}"))
        })?;
        let file = contents.file();
        contents.write(&images, |parts| {
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            let check = FileCheck { bytes, crc32: checksum_of_parts(parts) };
            let note = serde_json::to_vec(&check).expect("numbers are JSON");
            self.files.write(&file, parts)?;
            // Written last: a file with a note is whole.
            self.files.write(&note_of(&file), &[&note])
        })
    }

    /// Publishes the draft by a manifest, once all shards are written. Returns the snapshot's name.
    ///
    /// # Errors
    /// If a file is missing, has another length than its note says, or cannot be written.
    pub fn seal(self, frontier: Frontier) -> Result<String, Error> {
        let shards = 0..self.layout.shards.len() as u32;
        let files = shards.map(|shard| self.check(shard)).collect::<Result<BTreeMap<_, _>, _>>()?;
        files.keys().try_for_each(|file| self.files.remove(&note_of(file)))?;
        let first = newest(&*self.store, Series::Snapshots)?.map_or(1, |newest| newest + 1);
        let (definition, fingerprint) = (self.definition.clone(), self.layout.fingerprint);
        let fingerprint = format!("{fingerprint:016x}");
        let record = Contained { number: first, definition, fingerprint, frontier };
        let mut manifest = Manifest::new(record, files);
        for number in first..first + NAMES_MAX {
            manifest.record.number = number;
            if self.files.publish(number, manifest.clone())?.is_some() {
                return Ok(Series::Snapshots.name(number));
            }
        }
        let place = self.store.path("", "");
        Err(Error::new(Kind::Io, format!("no free name for a snapshot in {place}")))
    }

    /// Removes the draft, unless it has become a snapshot.
    pub fn discard(self) {
        self.files.discard_unless_newest();
    }

    /// Returns the name of a shard's file with the length and checksum in its note, after checking the
    /// length.
    fn check(&self, shard: u32) -> Result<(String, FileCheck), Error> {
        let file = self.contents(shard).file();
        let note = note_of(&file);
        let text = self.files.read(&note, NOTE_BYTES_MAX).map_err(|why| {
            Error::new(Kind::Missing, format!("{why}; check that all servers share the folder"))
        })?;
        let wrong = |file: &str, why: String| {
            let path = self.files.path(file);
            Error::new(Kind::Damaged, format!("{}: {why}", path.display()))
        };
        let check: FileCheck =
            serde_json::from_slice(&text).map_err(|error| wrong(&note, error.to_string()))?;
        // Whoever loads the file compares its checksum; reading every shard here would hold up the manifest.
        let found = self.files.length(&file)?;
        match found == check.bytes {
            true => Ok((file, check)),
            false => Err(wrong(&file, format!("{found} bytes, expected {}", check.bytes))),
        }
    }

    fn contents(&self, shard: u32) -> Contents<'_> {
        Contents { definition: &self.definition, layout: &self.layout, shard }
    }
}

/// Returns the name of the note for a shard's file.
fn note_of(file: &str) -> String {
    format!("{}.json", file.rsplit_once('.').map_or(file, |(stem, _)| stem))
}
