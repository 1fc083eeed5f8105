//! Files with which a job begins: a snapshot of another job, or a checkpoint of a model.
//!
//! Every process of the job names the same one in its definition, and every server reads the rows of its own shards
//! before it answers anybody.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Checkpoint, Snapshot};
use crate::configuration::{Definition, Layout};
use crate::error::Error;
use crate::table::Tables;

/// Files with which a job begins.
#[derive(Debug)]
pub enum Origin {
    /// Rows, versions and state of the optimiser of all tables.
    Snapshot(Snapshot),
    /// Values of the tables whose first values are `checkpoint`.
    Checkpoint(Checkpoint),
}

impl Origin {
    /// Opens the safetensors file at `path`, the snapshot there, or the newest one in that folder.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn open(path: &Path) -> Result<Origin, Error> {
        match path.is_file() {
            true => Checkpoint::open(path).map(Origin::Checkpoint),
            false => Snapshot::open(path).map(Origin::Snapshot),
        }
    }

    /// Returns the name by which the processes of a job agree on the files.
    pub fn name(&self) -> String {
        match self {
            Origin::Snapshot(snapshot) => snapshot.name(),
            Origin::Checkpoint(checkpoint) => checkpoint.name(),
        }
    }

    /// Returns the definition of a job that begins with the files.
    ///
    /// # Errors
    /// If they are of other tables.
    pub fn begin(&self, definition: Definition) -> Result<Definition, Error> {
        self.check(&definition)?;
        Ok(Definition { restore: Some(self.name()), ..definition })
    }

    /// Checks that the files are of the tables of a job.
    pub(crate) fn check(&self, definition: &Definition) -> Result<(), Error> {
        match self {
            Origin::Snapshot(snapshot) => snapshot.check(definition),
            Origin::Checkpoint(checkpoint) => checkpoint.check(definition),
        }
    }

    /// Loads the tables of some shards of a job whose definition was checked.
    pub(crate) fn tables(
        &self,
        (definition, layout): (&Definition, &Layout),
        shards: &[u32],
    ) -> Result<BTreeMap<u32, Tables>, Error> {
        match self {
            Origin::Snapshot(snapshot) => snapshot.tables(layout, shards),
            Origin::Checkpoint(checkpoint) => checkpoint.tables((definition, layout), shards),
        }
    }
}
