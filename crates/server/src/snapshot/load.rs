//! Reader of snapshots, which trusts none of their bytes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thinwire_update::Optimizer;
use thinwire_wire::checksum;

use super::image::Image;
use super::manifest::{FileCheck, MANIFEST, Manifest};
use super::shard_file::Contents;
use crate::configuration::{Definition, Layout};
use crate::cut::Piece;
use crate::error::{Error, Kind};
use crate::frontier::Frontier;
use crate::table::{Initial, Tables};

const MANIFEST_BYTES_MAX: u64 = 64 << 20;
const HINT: &str =
    "give a folder snapshot-NNNNNN, the folder that holds them, or a safetensors file";

/// Snapshot of a job's tables, with a checked manifest.
#[derive(Clone, Debug)]
pub struct Snapshot {
    path: PathBuf,
    manifest: Manifest,
    layout: Layout,
}

impl Snapshot {
    /// Opens the snapshot at `path`, or the newest one in that folder.
    ///
    /// # Errors
    /// If there is no snapshot, or its manifest is damaged.
    pub fn open(path: &Path) -> Result<Snapshot, Error> {
        let is_one = path.join(MANIFEST).exists();
        let newest = if is_one { None } else { newest(path).ok().flatten() };
        let path = newest.map_or(path.to_owned(), |number| path.join(snapshot_folder(number)));
        let file = path.join(MANIFEST);
        let text = bytes(&file, MANIFEST_BYTES_MAX).map_err(|why| {
            let context = format!("no snapshot at {}: {MANIFEST}: {why}", path.display());
            Error::new(Kind::Snapshot, context).with_hint(HINT)
        })?;
        let manifest = Manifest::from_text(&text).map_err(|why| corrupt(&file, &why))?;
        let layout = manifest.layout().map_err(|why| corrupt(&file, &why))?;
        Ok(Snapshot { path, manifest, layout })
    }

    /// Returns the name that identifies the snapshot in a definition: its number and the checksum of its
    /// manifest.
    pub fn name(&self) -> String {
        format!("{} ({:08x})", snapshot_folder(self.manifest.number), self.manifest.checksum())
    }

    /// Returns the folder of the snapshot.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the newest push of each worker in the snapshot.
    pub fn frontier(&self) -> &Frontier {
        &self.manifest.frontier
    }

    /// Returns the definition of the job that took the snapshot.
    pub fn definition(&self) -> &Definition {
        &self.manifest.definition
    }

    /// Checks that a job with this definition can restore the snapshot. Tables must be equal except for the
    /// hyperparameters of the optimiser, the format of values, and the initial values of tables that began
    /// with a checkpoint, since the snapshot has all of their rows. Numbers of shards, servers and backups
    /// may differ.
    ///
    /// # Errors
    /// If the snapshot is of other tables.
    pub fn check(&self, definition: &Definition) -> Result<(), Error> {
        let has = self.definition();
        let mut wanted = definition.clone();
        for (table, has) in wanted.tables.iter_mut().zip(&has.tables) {
            table.values.clone_from(&has.values);
            if Initial::parse(&has.initial) == Ok(Initial::Checkpoint) {
                table.initial.clone_from(&has.initial);
            }
            if is_same_rule(&table.optimizer, &has.optimizer) {
                table.optimizer.clone_from(&has.optimizer);
            }
        }
        let (found, expected) = (wanted.tables.len(), has.tables.len());
        let difference = match found == expected {
            true => wanted.difference_of_tables(has, "in the snapshot"),
            false => Some(format!("{found} tables, in the snapshot {expected}")),
        };
        let Some(difference) = difference else { return Ok(()) };
        let context = format!("{} is of another model: {difference}", self.path.display());
        Err(Error::new(Kind::Snapshot, context)
            .with_hint("use the model and the rules of the snapshot, or begin anew"))
    }

    /// Loads the tables of some shards of a job with this layout.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn tables(&self, layout: &Layout, shards: &[u32]) -> Result<BTreeMap<u32, Tables>, Error> {
        let mut images: BTreeMap<u32, Vec<Image>> = BTreeMap::new();
        for shard in shards {
            images.insert(*shard, vec![Image::default(); layout.shards[*shard as usize].len()]);
        }
        for old in 0..self.layout.shards.len() as u32 {
            let pieces = &self.layout.shards[old as usize];
            let meets = |shard: &&u32| meets(pieces, &layout.shards[**shard as usize]);
            let wanted: Vec<u32> = shards.iter().filter(meets).copied().collect();
            if wanted.is_empty() {
                continue;
            }
            let contents = self.contents(old);
            let rows = self.read(&contents)?;
            for shard in wanted {
                let images = images.get_mut(&shard).expect("there is one of each");
                deal(&contents, &rows, &layout.shards[shard as usize], images);
            }
        }
        let tables = |(shard, images): (u32, Vec<Image>)| {
            let pieces = &layout.shards[shard as usize];
            let mut bytes = Vec::new();
            pieces.iter().zip(images).for_each(|(piece, image)| image.write(piece, &mut bytes));
            let tables = Tables::read_from(&bytes, pieces, &layout.tables, None)?;
            let twice = || corrupt(&self.path, "a row is there twice, expected once");
            tables.map(|tables| (shard, tables)).ok_or_else(twice)
        };
        images.into_iter().map(tables).collect()
    }

    fn contents(&self, shard: u32) -> Contents<'_> {
        Contents { definition: self.definition(), layout: &self.layout, shard }
    }

    /// Reads the file of a shard, after checking its length and checksum against the manifest.
    fn read(&self, contents: &Contents<'_>) -> Result<Vec<Image>, Error> {
        let name = contents.file();
        let path = self.path.join(&name);
        let wrong = |why: String| corrupt(&path, &why);
        let expected = self.manifest.files.get(&name).copied();
        let FileCheck { bytes: length, crc32 } =
            expected.ok_or_else(|| wrong("it is not in the manifest".to_owned()))?;
        let bytes = bytes(&path, length).map_err(wrong)?;
        if bytes.len() as u64 != length {
            return Err(wrong(format!("{} bytes, expected {length}", bytes.len())));
        }
        let found = checksum(&bytes);
        if found != crc32 {
            return Err(wrong(format!("checksum {found:#010x}, expected {crc32:#010x}")));
        }
        contents.read(&bytes).map_err(wrong)
    }
}

/// Returns whether two optimisers have the same rule, and so the same state.
fn is_same_rule(one: &str, other: &str) -> bool {
    let rule = |text| Optimizer::parse(text).ok().map(|it| std::mem::discriminant(&it.rule));
    rule(one).is_some_and(|one| rule(other) == Some(one))
}

/// Returns whether two shards have a row in common.
fn meets(one: &[Piece], other: &[Piece]) -> bool {
    one.iter().any(|a| {
        let is_met = |b: &Piece| {
            a.table == b.table && a.rows.start < b.rows.end && b.rows.start < a.rows.end
        };
        other.iter().any(is_met)
    })
}

/// Copies the rows in one shard's file to the images of another shard's pieces.
fn deal(contents: &Contents<'_>, rows: &[Image], pieces: &[Piece], images: &mut [Image]) {
    for (old, rows) in contents.pieces().iter().zip(rows) {
        for (piece, image) in pieces.iter().zip(&mut *images) {
            if piece.table == old.table {
                image.take(rows, &piece.rows, contents.widths(old));
            }
        }
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

/// Returns the number of the newest snapshot in a folder.
pub fn newest(folder: &Path) -> io::Result<Option<u64>> {
    let mut newest = None;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(number_of);
        if number.is_some() && entry.path().join(MANIFEST).is_file() {
            newest = newest.max(number);
        }
    }
    Ok(newest)
}

/// Returns the length of a regular file.
pub fn length_of(path: &Path) -> Result<u64, String> {
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    // Opening a pipe would wait for a writer, and a device may be endless.
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false => Err("no regular file".to_owned()),
    }
}

/// Reads a regular file of at most `bytes_max` bytes.
fn bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let said = |error: io::Error| error.to_string();
    let length = length_of(path)?;
    if length > bytes_max {
        return Err(format!("{length} bytes, expected at most {bytes_max}"));
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(length).is_ok_and(|length| bytes.try_reserve_exact(length).is_ok());
    if !room {
        return Err(format!("{length} bytes, more than there is memory"));
    }
    let file = File::open(path).map_err(said)?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(said)?;
    Ok(bytes)
}

fn corrupt(path: &Path, why: &str) -> Error {
    let why = why.lines().next().unwrap_or_default();
    let context = format!("corrupt snapshot: {}: {why}", path.display());
    Error::new(Kind::Snapshot, context).with_hint("go back to an earlier snapshot")
}
