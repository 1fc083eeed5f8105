//! Options of readers.

use crate::error::Error;

/// Facts about a file that the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Number of vertices, where the caller knows it.
    pub vertices: Option<u32>,
    /// Columns of the source and of the destination in an edge list, from 1 on. Without them lines must have
    /// two columns.
    pub columns: Option<(u32, u32)>,
}

impl Options {
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.columns {
            Some((source, destination))
                if source.min(destination) == 0 || source == destination =>
            {
                let what = format!("columns {source} and {destination}");
                Err(Error::value(format!("{what}, expected two different ones from 1 on")))
            }
            _ => Ok(()),
        }
    }
}
