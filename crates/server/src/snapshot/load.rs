//! Reader of snapshots; it checks all of their bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use thinwire_checkpoint::{Location, MANIFEST, Sealed, Series};
use thinwire_update::Optimizer;

use super::image::Image;
use super::manifest::Contained;
use super::shard_file::Contents;
use crate::configuration::{Definition, Layout};
use crate::cut::Piece;
use crate::error::{Error, Kind};
use crate::frontier::Frontier;
use crate::table::{Initial, Tables};

/// Longest time for a request that looks for a snapshot in a bucket.
const PATIENCE: Duration = Duration::from_secs(90);

/// Snapshot of a job's tables, with a checked manifest.
#[derive(Clone, Debug)]
pub struct Snapshot {
    sealed: Sealed<Contained>,
    layout: Layout,
}

impl Snapshot {
    /// Opens the snapshot at a location, or the newest snapshot in this folder or bucket.
    ///
    /// # Errors
    /// If there is no snapshot, or its manifest is damaged.
    pub fn open(location: &Location) -> Result<Snapshot, Error> {
        Snapshot::of(Sealed::resolve(location, PATIENCE)?)
    }

    pub(super) fn of(sealed: Sealed<Contained>) -> Result<Snapshot, Error> {
        let layout = sealed.manifest().record.layout();
        let layout = layout.map_err(|why| sealed.damaged(MANIFEST, &why))?;
        Ok(Snapshot { sealed, layout })
    }

    /// Returns the name that identifies the snapshot in a definition: its number and the checksum of its
    /// manifest.
    pub fn name(&self) -> String {
        let manifest = self.sealed.manifest();
        format!("{} ({:08x})", Series::Snapshots.name(manifest.record.number), manifest.checksum())
    }

    /// Returns the path of the snapshot, for messages.
    pub fn path(&self) -> String {
        self.sealed.path("").display().to_string()
    }

    /// Returns the number of the newest push of each worker in the snapshot.
    pub fn frontier(&self) -> &Frontier {
        &self.sealed.manifest().record.frontier
    }

    /// Returns the definition of the job that took the snapshot.
    pub fn definition(&self) -> &Definition {
        &self.sealed.manifest().record.definition
    }

    /// Checks that a job with this definition can restore the snapshot. Tables must be equal except for the
    /// hyperparameters of the optimiser, the format of values, and the initial values of tables that began
    /// with a checkpoint, since the snapshot has all of their rows. Numbers of shards, servers and backups
    /// may differ.
    ///
    /// # Errors
    /// If the snapshot belongs to other tables.
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
            false => Some(format!("{found} tables, but the snapshot has {expected}")),
        };
        let Some(difference) = difference else { return Ok(()) };
        let context = format!("{} is of another model: {difference}", self.path());
        Err(Error::new(Kind::Snapshot, context)
            .with_hint("use the model and the rules of the snapshot, or start without it"))
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
            // Without a limit: a shard that takes these tables sets that of its server.
            let tables = Tables::read_from(&bytes, pieces, &layout.tables, None)?;
            let twice = || self.sealed.damaged("", "a row appears twice, expected once").into();
            tables.map(|tables| (shard, tables)).ok_or_else(twice)
        };
        images.into_iter().map(tables).collect()
    }

    fn contents(&self, shard: u32) -> Contents<'_> {
        Contents { definition: self.definition(), layout: &self.layout, shard }
    }

    fn read(&self, contents: &Contents<'_>) -> Result<Vec<Image>, Error> {
        let name = contents.file();
        let images = contents.read(&self.sealed.read(&name)?);
        Ok(images.map_err(|why| self.sealed.damaged(&name, &why))?)
    }
}

/// Returns whether two optimisers have the same rule, and so the same kind of state.
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
