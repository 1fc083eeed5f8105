//! Reader of snapshots, which trusts none of their bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use thinwire_update::Optimizer;
use thinwire_wire::checksum;

use super::image::Image;
use super::manifest::{FileCheck, MANIFEST, Manifest, number_of, snapshot_folder};
use super::shard_file::Contents;
use super::store::{Location, Store, newest};
use crate::configuration::{Definition, Layout};
use crate::cut::Piece;
use crate::error::{Error, Kind};
use crate::frontier::Frontier;
use crate::table::{Initial, Tables};

pub(super) const MANIFEST_BYTES_MAX: u64 = 64 << 20;
const HINT: &str =
    "give a folder snapshot-NNNNNN, the place that holds them, or a safetensors file";

/// Snapshot of a job's tables, with a checked manifest.
#[derive(Clone, Debug)]
pub struct Snapshot {
    store: Arc<dyn Store>,
    /// Folder of the manifest in the store; empty if the store is that folder.
    folder: String,
    manifest: Manifest,
    layout: Layout,
}

impl Snapshot {
    /// Opens the snapshot at a location, or the newest one there.
    ///
    /// # Errors
    /// If there is no snapshot, or its manifest is damaged.
    pub fn open(location: &Location) -> Result<Snapshot, Error> {
        match location.split().filter(|(_, name)| number_of(name).is_some()) {
            Some((parent, name)) => Snapshot::of(parent.store()?, name),
            None => Snapshot::of(location.store()?, String::new()),
        }
    }

    /// Opens the snapshot in a folder of a store; without a folder the store itself, or the newest one in it.
    pub(super) fn of(store: Arc<dyn Store>, folder: String) -> Result<Snapshot, Error> {
        let is_one = !folder.is_empty() || store.length("", MANIFEST).is_ok();
        let newest = if is_one { None } else { newest(&*store).ok().flatten() };
        let folder = newest.map_or(folder, snapshot_folder);
        let file = store.path(&folder, MANIFEST);
        let text = store.read(&folder, MANIFEST, MANIFEST_BYTES_MAX).map_err(|why| {
            let context = format!("no snapshot at {}: {why}", store.path(&folder, ""));
            Error::new(Kind::Snapshot, context).with_hint(HINT)
        })?;
        let manifest = Manifest::from_text(&text).map_err(|why| corrupt(&file, &why))?;
        let layout = manifest.layout().map_err(|why| corrupt(&file, &why))?;
        Ok(Snapshot { store, folder, manifest, layout })
    }

    /// Returns the name that identifies the snapshot in a definition: its number and the checksum of its
    /// manifest.
    pub fn name(&self) -> String {
        format!("{} ({:08x})", snapshot_folder(self.manifest.number), self.manifest.checksum())
    }

    /// Returns the path of the snapshot, for messages.
    pub fn path(&self) -> String {
        self.store.path(&self.folder, "")
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
        let context = format!("{} is of another model: {difference}", self.path());
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
            let twice = || corrupt(&self.path(), "a row is there twice, expected once");
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
        let folder = self.manifest.folder.as_ref().unwrap_or(&self.folder);
        let path = self.store.path(folder, &name);
        let wrong = |why: String| corrupt(&path, &why);
        let expected = self.manifest.files.get(&name).copied();
        let FileCheck { bytes: length, crc32 } =
            expected.ok_or_else(|| wrong("it is not in the manifest".to_owned()))?;
        let bytes = self.store.read(folder, &name, length);
        let bytes = bytes.map_err(|why| corrupt_file(&why))?;
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

fn corrupt(path: &str, why: &str) -> Error {
    corrupt_file(&format!("{path}: {why}"))
}

fn corrupt_file(why: &str) -> Error {
    let why = why.lines().next().unwrap_or_default();
    let context = format!("corrupt snapshot: {why}");
    Error::new(Kind::Snapshot, context).with_hint("go back to an earlier snapshot")
}
