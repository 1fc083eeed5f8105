//! Content of a snapshot's manifest: definition and frontier.

use serde::{Deserialize, Serialize};
use thinwire_checkpoint::{Record, Series};

use crate::configuration::{Definition, Layout};
use crate::frontier::Frontier;

/// Manifest of a snapshot.
pub type Manifest = thinwire_checkpoint::Manifest<Contained>;

/// State of a job's tables in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contained {
    /// Number of the snapshot among the snapshots of its folder.
    pub number: u64,
    /// Tables of the job.
    pub definition: Definition,
    /// Fingerprint of the definition, sixteen hexadecimal digits.
    pub fingerprint: String,
    /// Number of the newest push of each worker in the snapshot.
    pub frontier: Frontier,
}

impl Contained {
    /// Returns the layout of the tables, after comparing the fingerprint. The error is one line.
    pub fn layout(&self) -> Result<Layout, String> {
        let layout = self.definition.layout().map_err(|error| error.to_string())?;
        let (found, expected) = (&self.fingerprint, format!("{:016x}", layout.fingerprint));
        match *found == expected {
            true => Ok(layout),
            false => Err(format!("fingerprint {found}, expected {expected}")),
        }
    }
}

impl Record for Contained {
    const FORMAT: u32 = 1;
    const SERIES: Series = Series::Snapshots;

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn is_file(_name: &str) -> bool {
        false
    }
}
