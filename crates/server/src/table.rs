//! Table: rows of one shard with their values, optimiser state and versions.
//!
//! A row that was never written takes four bytes; its values are a function of seed, table and row, and
//! reading it stores nothing. Written rows are in [`Pages`] in the order of their first write, which puts
//! frequently written rows next to each other. Replicas that apply equal writes are equal bit by bit,
//! whatever their memory limits.

mod bytes;
mod initial;
mod page_file;
mod pages;
mod schema_error;
mod shape;
mod tables;

use std::ops::Range;

use thinwire_rows::Format;
use thinwire_update::Optimizer;
use thinwire_wire::random::Key;

use crate::cut::Piece;
use crate::error::Error;
use crate::write::Part;
pub(crate) use bytes::{Fields, write_count};
pub use initial::{Initial, InvalidInitial};
pub use pages::MemoryLimit;
use pages::Pages;
pub use schema_error::SchemaError;
use shape::Shape;
pub use tables::Tables;

/// Settings of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions {
    /// Values per row.
    pub width: usize,
    /// Optimiser of the table.
    pub optimizer: Optimizer,
    /// Initial values.
    pub initial: Initial,
    /// Seed of the initial values.
    pub seed: u64,
    /// Random stream of the initial values; tables with different streams start with independent values.
    pub stream: u32,
    /// Format in which values and gradients are sent.
    pub values: Format,
}

/// Rows of a table in one shard; their values are in the shard's pages.
#[derive(Debug)]
pub struct Table {
    number: u32,
    options: TableOptions,
    range: Range<u64>,
    /// Place of each row plus 1; 0 for a row that was never written.
    places: Vec<u32>,
    written: u32,
    shape: Shape,
    /// Number of the table's first page in the shard.
    first_page: u32,
}

impl Table {
    /// Creates a table with the rows of a piece, none of them written.
    fn new(piece: &Piece, options: TableOptions, first_page: u32) -> Table {
        let rows = piece.rows.end - piece.rows.start;
        Table {
            number: piece.table,
            options,
            range: piece.rows.clone(),
            places: vec![0; rows as usize],
            written: 0,
            shape: Shape::new(rows, options.width, options.optimizer.rule.slots()),
            first_page,
        }
    }

    /// Returns the number of rows that were written.
    pub fn written(&self) -> usize {
        self.written as usize
    }

    /// Returns the number of pages that all rows need.
    fn pages(&self) -> u32 {
        self.places.len().div_ceil(self.shape.rows) as u32
    }

    /// Updates the rows of a part, which must have been checked.
    fn update(&mut self, part: &Part, pages: &mut Pages) -> Result<(), Error> {
        let known = self.written;
        let mut places: Vec<(u32, u32)> =
            part.rows.iter().zip(0..).map(|(row, at)| (self.touch(*row), at)).collect();
        if pages.is_limited() {
            // Sorted by place, each page is read from disk at most once.
            places.sort_unstable();
        }
        let (width, rows) = (self.options.width, self.shape.rows as u32);
        let gradients = part.gradient.decoded(part.rows.len());
        for group in places.chunk_by(|one, other| one.0 / rows == other.0 / rows) {
            let page = self.first_page + group[0].0 / rows;
            let mut page = self.shape.split(pages.edit(page, self.shape.words())?);
            for (place, at) in group {
                let (within, at) = (place % rows, *at as usize);
                // A row that this update writes for the first time begins with its initial values.
                if *place >= known {
                    let start = within as usize * width;
                    self.begin(part.rows[at], &mut page.values[start..start + width]);
                }
                let gradient = &gradients[at * width..][..width];
                self.options.optimizer.update_rows(&mut page, &[within], gradient);
            }
        }
        Ok(())
    }

    /// Sets the values of consecutive rows from `first` on.
    fn set(&mut self, first: u64, values: &[f32], pages: &mut Pages) -> Result<(), Error> {
        for (row, values) in (first..).zip(values.chunks_exact(self.options.width)) {
            let place = self.touch(row);
            let (page, within) = (place / self.shape.rows as u32, place as usize % self.shape.rows);
            let words = pages.edit(self.first_page + page, self.shape.words())?;
            let page = self.shape.split(words);
            page.values[within * values.len()..][..values.len()].copy_from_slice(values);
        }
        Ok(())
    }

    /// Writes the values of rows, which must have been checked, in the given order and format.
    fn read(
        &self,
        rows: &[u64],
        format: Format,
        pages: &mut Pages,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut places: Vec<(Option<u32>, u32)> =
            rows.iter().zip(0..).map(|(row, at)| (self.place(*row), at)).collect();
        if pages.is_limited() {
            places.sort_unstable();
        }
        let mut first = vec![0.0; self.options.width];
        let (bytes, count) = (format.width(self.options.width), self.shape.rows as u32);
        let page = |place: &(Option<u32>, u32)| place.0.map(|place| place / count);
        for group in places.chunk_by(|one, other| page(one) == page(other)) {
            let words = match page(&group[0]) {
                Some(page) => pages.read(self.first_page + page, self.shape.words())?,
                None => &[],
            };
            for (place, at) in group {
                let values = match place {
                    Some(place) => self.shape.values(words, (place % count) as usize),
                    None => {
                        self.begin(rows[*at as usize], &mut first);
                        bytemuck::must_cast_slice(&first)
                    }
                };
                let out = &mut out[*at as usize * bytes..][..bytes];
                match format {
                    Format::F32 => out.copy_from_slice(values),
                    _ => format.encode(bytemuck::cast_slice(values), out),
                }
            }
        }
        Ok(())
    }

    /// Returns the place of a row, assigning the next one to a row without a place.
    fn touch(&mut self, row: u64) -> u32 {
        let place = &mut self.places[(row - self.range.start) as usize];
        if *place == 0 {
            self.written += 1;
            *place = self.written;
        }
        *place - 1
    }

    /// Writes the initial values of a row.
    fn begin(&self, row: u64, values: &mut [f32]) {
        // Equal to the initial values of a local parameter with this shape, seed and stream.
        let key = Key { seed: self.options.seed, step: 0, tensor: self.options.stream };
        self.options.initial.fill(row, key, values);
    }

    fn place(&self, row: u64) -> Option<u32> {
        self.places[(row - self.range.start) as usize].checked_sub(1)
    }

    fn check_rows(&self, rows: &[u64]) -> Result<(), SchemaError> {
        let ascends = |at: usize| at == 0 || rows[at - 1] < rows[at];
        let fits = |at: &usize| self.range.contains(&rows[*at]) && ascends(*at);
        match (0..rows.len()).find(|at| !fits(at)) {
            None => Ok(()),
            Some(at) => {
                let expected = self.range.clone();
                Err(SchemaError::Row { table: self.number, row: rows[at], expected })
            }
        }
    }

    fn check_part(&self, part: &Part) -> Result<(), SchemaError> {
        let table = self.number;
        self.check_rows(&part.rows)?;
        let format = part.gradient.format();
        let row = format.width(self.options.width) / format.item_bytes();
        let (found, expected) = (part.gradient.len(), part.rows.len() * row);
        if found != expected {
            return Err(SchemaError::Length { table, found, expected });
        }
        let (found, expected) = (part.rows.len(), self.places.len());
        if !self.options.optimizer.rule.is_lazy() && found != expected {
            return Err(SchemaError::Partial { table, found, expected });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
