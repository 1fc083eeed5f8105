//! Rows of a graph's file, copied from its mapped pages.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use thinwire_graph::Store;
use thinwire_rows::{Error, Source};

/// Source of the features of vertices in a graph's file. Its rows are the features of all vertices, or of
/// consecutive ones.
///
/// Unlike [`Frozen`](thinwire_rows::Frozen), it needs no system call per run of rows.
#[derive(Clone)]
pub struct Stored {
    store: Arc<Store>,
    width: usize,
    vertices: Range<u32>,
}

impl Stored {
    /// Creates the source of all vertices of a file; returns `None` if they have no features.
    pub fn new(store: Arc<Store>) -> Option<Stored> {
        let vertices = 0..store.adjacency().vertices();
        Stored::of(store, vertices)
    }

    /// Creates the source of consecutive vertices, the first of which has row 0; returns `None` if they have
    /// no features.
    ///
    /// # Panics
    /// If there are no such vertices.
    pub fn of(store: Arc<Store>, vertices: Range<u32>) -> Option<Stored> {
        assert!(vertices.start <= vertices.end && vertices.end <= store.adjacency().vertices());
        let width = store.features()?.width as usize;
        (width > 0).then_some(Stored { store, width, vertices })
    }

    /// Checks that the file was not changed.
    fn ensure_unchanged(&self) -> Result<(), Error> {
        let changed = |error| Error::of_source("features".to_owned(), error);
        self.store.ensure_unchanged().map_err(changed)
    }
}

impl Source for Stored {
    fn width(&self) -> usize {
        self.width
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        check_room(rows, out, self.width)?;
        check_rows(rows, self.vertices.len() as u64)?;
        self.ensure_unchanged()?;
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            out.copy_from_slice(self.store.row(self.vertices.start + *row as u32));
        }
        self.ensure_unchanged()
    }

    fn in_memory(&self, row: u64) -> Option<&[u8]> {
        let row = u32::try_from(row).ok().filter(|row| (*row as usize) < self.vertices.len())?;
        Some(self.store.row(self.vertices.start + row))
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("path", &self.store.path()).finish_non_exhaustive()
    }
}

/// Refuses, before any row is read, a buffer whose size is not `width` bytes per row.
///
/// # Errors
/// If it has another size.
pub(crate) fn check_room(rows: &[u64], out: &[u8], width: usize) -> Result<(), Error> {
    if out.len() == rows.len() * width {
        return Ok(());
    }
    let context = format!("{} bytes for {} rows of {width}", out.len(), rows.len());
    Err(Error::of_source(context, "expected room for all rows"))
}

/// Refuses rows that a source of `count` rows does not have.
///
/// # Errors
/// The error names the first such row.
pub(crate) fn check_rows(rows: &[u64], count: u64) -> Result<(), Error> {
    rows.iter().find(|row| **row >= count).map_or(Ok(()), |row| {
        let context = format!("row {row}, expected rows of 0..{count}");
        Err(Error::of_source(context, "no such row"))
    })
}
