//! One batch on its way through a cache.

use crate::error::{Error, check_length};
use crate::unique::Unique;

/// Batch of ids between [`Cache::begin`](crate::Cache::begin) and
/// [`Cache::finish`](crate::Cache::finish), used again for the next batch: buffers are kept.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Number of ids.
    pub(crate) ids: usize,
    /// Ids that the cache did not give, and their positions in the batch.
    missing: Vec<u64>,
    positions: Vec<u32>,
    unique: Unique,
    /// Values of the missing rows, where the cache reads them from a source itself.
    pub(crate) values: Vec<u8>,
}

impl Lookup {
    /// A lookup of no ids.
    pub fn new() -> Lookup {
        Lookup::default()
    }

    /// Returns the rows that the cache did not give, ascending and without repetitions.
    pub fn missing(&self) -> &[u64] {
        self.unique.rows()
    }

    /// Ends the batch without the cache: copies the values of its missing rows, `width` bytes each, to their ids'
    /// places in `out`, and keeps none.
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

    /// Copies the values of the missing rows to their ids.
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
