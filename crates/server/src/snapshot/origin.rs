//! Origin: files with which a job begins, a snapshot of another job or a checkpoint of a model.
//!
//! The definition names the origin, so all processes of the job have the same one. Every server loads the
//! rows of its shards before it answers a request.

use std::collections::BTreeMap;

use thinwire_checkpoint::Location;

use super::{Checkpoint, Snapshot};
use crate::configuration::{Definition, Layout};
use crate::error::Error;
use crate::table::Tables;

/// Files with which a job begins.
#[derive(Debug)]
pub enum Origin {
    /// Rows, versions and optimiser state of all tables.
    Snapshot(Snapshot),
    /// Values of the tables whose initial values are `checkpoint`.
    Checkpoint(Checkpoint),
}

impl Origin {
    /// Opens a safetensors file, a snapshot, or the newest snapshot at a place.
    ///
    /// # Errors
    /// If the location has none of these, or it is damaged.
    pub fn open(location: &Location) -> Result<Origin, Error> {
        match location {
            Location::Folder(path) if path.is_file() => {
                Checkpoint::open(path).map(Origin::Checkpoint)
            }
            _ => Snapshot::open(location).map(Origin::Snapshot),
        }
    }

    /// Returns the name that identifies the files in a definition.
    pub fn name(&self) -> String {
        match self {
            Origin::Snapshot(snapshot) => snapshot.name(),
            Origin::Checkpoint(checkpoint) => checkpoint.name(),
        }
    }

    /// Returns the definition with these files as its origin.
    ///
    /// # Errors
    /// If the files do not fit its tables.
    pub fn begin(&self, definition: Definition) -> Result<Definition, Error> {
        self.check(&definition)?;
        Ok(Definition { restore: Some(self.name()), ..definition })
    }

    /// Checks that the files fit the tables of a definition.
    pub(crate) fn check(&self, definition: &Definition) -> Result<(), Error> {
        match self {
            Origin::Snapshot(snapshot) => snapshot.check(definition),
            Origin::Checkpoint(checkpoint) => checkpoint.check(definition),
        }
    }

    /// Loads the tables of some shards of a job. The definition must have been checked.
    pub(crate) fn tables(
        &self,
        definition: &Definition,
        layout: &Layout,
        shards: &[u32],
    ) -> Result<BTreeMap<u32, Tables>, Error> {
        match self {
            Origin::Snapshot(snapshot) => snapshot.tables(layout, shards),
            Origin::Checkpoint(checkpoint) => checkpoint.tables(definition, layout, shards),
        }
    }
}
