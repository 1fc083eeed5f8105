//! Lookup of one batch in a cache.

use crate::error::{Error, check_length};
use crate::unique::Unique;

/// Batch of ids between [`Cache::begin`](crate::Cache::begin) and [`Cache::finish`](crate::Cache::finish). A
/// lookup is reusable, and keeps its buffers for the next batch.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Number of ids.
    pub(crate) ids: usize,
    /// Ids that were misses, and their positions in the batch.
    missing: Vec<u64>,
    positions: Vec<u32>,
    unique: Unique,
    /// Values of the missing rows, if the cache reads them from a source itself.
    pub(crate) values: Vec<u8>,
}

impl Lookup {
    /// Creates an empty lookup.
    pub fn new() -> Lookup {
        Lookup::default()
    }

    /// Returns the missing rows, ascending and unique.
    pub fn missing(&self) -> &[u64] {
        self.unique.rows()
    }

    /// Finishes the batch without caching anything: copies the values of the missing rows, `width` bytes
    /// each, to the places of their ids in `out`.
    ///
    /// # Errors
    /// If a length does not fit.
    pub fn finish(&mut self, values: &[u8], width: usize, out: &mut [u8]) -> Result<(), Error> {
        self.scatter(values, width, out)?;
        self.clear();
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.ids = 0;
        self.missing.clear();
        self.positions.clear();
        self.unique.take(&[]);
    }

    pub(crate) fn miss(&mut self, id: u64, position: u32) {
        self.missing.push(id);
        self.positions.push(position);
    }

    pub(crate) fn begun(&mut self, ids: usize) {
        self.ids = ids;
        self.unique.take(&self.missing);
    }

    /// Copies the values of the missing rows to the places of their ids.
    pub(crate) fn scatter(&self, values: &[u8], width: usize, out: &mut [u8]) -> Result<(), Error> {
        check_length("values", values.len(), self.missing().len(), width)?;
        check_length("output", out.len(), self.ids, width)?;
        for (position, place) in self.positions.iter().zip(self.unique.places()) {
            let value = &values[*place as usize * width..][..width];
            out[*position as usize * width..][..width].copy_from_slice(value);
        }
        Ok(())
    }
}
