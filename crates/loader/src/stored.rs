//! Rows of a graph's file, copied from its mapped pages.

use std::fmt;
use std::sync::Arc;

use thinwire_graph::Store;
use thinwire_rows::{Error, Source};

use crate::check::{check_room, check_rows};

/// Source of the features of all vertices in a file of a graph: the row of a vertex has its number.
///
/// Unlike [`Frozen`](thinwire_rows::Frozen) it needs no call to the system per run of rows.
#[derive(Clone)]
pub struct Stored {
    store: Arc<Store>,
    width: usize,
}

impl Stored {
    /// Creates the source of a file; none if its vertices have no features.
    pub fn new(store: Arc<Store>) -> Option<Stored> {
        let width = store.features()?.width as usize;
        (width > 0).then_some(Stored { store, width })
    }
}

impl Source for Stored {
    fn width(&self) -> usize {
        self.width
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        check_room(rows, out, self.width)?;
        check_rows(rows, self.store.adjacency().vertices().into())?;
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            out.copy_from_slice(self.store.row(*row as u32));
        }
        Ok(())
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("path", &self.store.path()).finish_non_exhaustive()
    }
}
