//! Draft of a snapshot: a folder into which several servers write.
//!
//! A note beside each shard's file has its length and checksum, from which the manifest is made.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thinwire_link::durable;
use thinwire_member::Id;
use thinwire_wire::checksum_of_parts;

use super::image::Image;
use super::load::{newest, snapshot_folder};
use super::manifest::{FileCheck, MANIFEST, Manifest};
use super::shard_file::Contents;
use crate::configuration::{Definition, Layout};
use crate::frontier::Frontier;

const PARTIAL: [&str; 2] = [".snapshot-", ".partial"];
/// Age at which a draft of another job counts as abandoned.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);
/// Largest number of names to try if other jobs write to the same folder.
const NAMES_MAX: u64 = 100;

/// Snapshot that is being written.
#[derive(Debug)]
pub struct Draft {
    folder: PathBuf,
    path: PathBuf,
    definition: Definition,
    layout: Arc<Layout>,
}

impl Draft {
    /// Creates the folder of a draft unless another server has, and removes abandoned drafts. The folder's
    /// name contains the id of the process that asked, so jobs never share a draft.
    ///
    /// # Errors
    /// If the folder cannot be created or written to, in one line.
    pub fn create(
        folder: &Path,
        (snapshot, asker): (u64, Id),
        (definition, layout): (Definition, Arc<Layout>),
    ) -> Result<Draft, String> {
        let [start, end] = PARTIAL;
        let path = folder.join(format!("{start}{asker}-{snapshot}{end}"));
        fs::create_dir_all(&path).map_err(failed("create", &path))?;
        clean(folder);
        Ok(Draft { folder: folder.to_owned(), path, definition, layout })
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
        let path = self.path.join(contents.file());
        contents.write(&images, |parts| {
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            let check = FileCheck { bytes, crc32: checksum_of_parts(parts) };
            let note = serde_json::to_vec(&check).expect("numbers are JSON");
            durable::create(&path, parts).map_err(failed("write", &path))?;
            let path = note_of(&path);
            durable::create(&path, &[&note]).map_err(failed("write", &path))
        })
    }

    /// Writes the manifest and renames the folder, once all shards are written. Returns the snapshot's name.
    ///
    /// # Errors
    /// If a file is missing, has another length than its note says, or cannot be written, in one line.
    pub fn seal(self, frontier: Frontier) -> Result<String, String> {
        let shards = 0..self.layout.shards.len() as u32;
        let files = shards.map(|shard| self.check(shard)).collect::<Result<BTreeMap<_, _>, _>>()?;
        files.keys().try_for_each(|file| {
            let note = note_of(&self.path.join(file));
            fs::remove_file(&note).map_err(failed("remove", &note))
        })?;
        let number = newest(&self.folder).map_err(failed("list", &self.folder))?;
        let number = number.map_or(1, |newest| newest + 1);
        let about = (self.definition.clone(), &*self.layout);
        let mut manifest = Manifest::new(number, about, frontier, files);
        for number in number..number + NAMES_MAX {
            manifest.number = number;
            if let Some(name) = self.place(&manifest)? {
                return Ok(name);
            }
        }
        Err(format!("no free name for a snapshot in {}", self.folder.display()))
    }

    /// Removes the draft.
    pub fn discard(self) {
        // A later draft cleans up what could not be removed.
        let _ = fs::remove_dir_all(&self.path);
    }

    /// Writes the manifest and renames the folder. Returns the new name, or `None` if it is taken.
    fn place(&self, manifest: &Manifest) -> Result<Option<String>, String> {
        let path = self.path.join(MANIFEST);
        durable::replace(&path, manifest.to_text().as_bytes()).map_err(failed("write", &path))?;
        durable::sync_folder(&self.path).map_err(failed("write", &self.path))?;
        let name = snapshot_folder(manifest.number);
        let target = self.folder.join(&name);
        if target.exists() {
            return Ok(None);
        }
        match fs::rename(&self.path, &target) {
            Ok(()) => {}
            Err(_) if target.exists() => return Ok(None),
            Err(error) => return Err(failed("rename", &self.path)(error)),
        }
        durable::sync_folder(&self.folder).map_err(failed("write", &self.folder))?;
        Ok(Some(name))
    }

    /// Returns the name of a shard's file with the length and checksum in its note, after checking the
    /// length.
    fn check(&self, shard: u32) -> Result<(String, FileCheck), String> {
        let file = self.contents(shard).file();
        let path = self.path.join(&file);
        let note = fs::read(note_of(&path)).map_err(|error| {
            format!("{}: {error}; do all servers share the folder?", note_of(&path).display())
        })?;
        let check: FileCheck = serde_json::from_slice(&note)
            .map_err(|error| format!("{}: {error}", note_of(&path).display()))?;
        let found = path.metadata().map_err(failed("read", &path))?.len();
        match found == check.bytes {
            true => Ok((file, check)),
            false => Err(format!("{}: {found} bytes, expected {}", path.display(), check.bytes)),
        }
    }

    fn contents(&self, shard: u32) -> Contents<'_> {
        Contents { definition: &self.definition, layout: &self.layout, shard }
    }
}

fn note_of(path: &Path) -> PathBuf {
    path.with_extension("json")
}

fn failed(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    let text = format!("cannot {what} {}", path.display());
    move |error| format!("{text}: {error}")
}

/// Removes abandoned drafts.
fn clean(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_draft = name.to_str().is_some_and(|name| {
            let rest = name.strip_prefix(PARTIAL[0]).and_then(|rest| rest.strip_suffix(PARTIAL[1]));
            rest.is_some()
        });
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|time| time.elapsed().ok());
        if is_draft && age.is_some_and(|age| age > STALE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
