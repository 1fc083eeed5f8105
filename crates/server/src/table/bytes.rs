//! Tables as bytes: serialisation of a shard's copy and of answers.
//!
//! For each table, in order: its number (4 bytes), the number of written rows (4), their places in the shard
//! in the order of their first writes (4 each), their versions (4 each), values and state (4 per number).
//! Law: `read(write(x)) == x`, and reading any bytes gives tables of the shard or nothing.

use std::ops::Range;

use super::pages::{MemoryLimit, Pages};
use super::{Table, TableOptions, Tables};
use crate::cut::Piece;
use crate::error::Error;
use crate::write::Pull;

/// Bytes of a table's number and its number of rows.
const HEAD_BYTES: usize = 8;

impl Tables {
    /// Returns the tables as bytes; equal tables have equal bytes.
    ///
    /// # Errors
    /// If the disk of spilled rows fails.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).map(|()| bytes)
    }

    /// Appends the tables. Spilled rows are not brought into memory.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.pages.check()?;
        let length: usize = self.tables.iter().map(Table::written_bytes).sum();
        bytes.reserve_exact(length);
        self.tables.iter().try_for_each(|table| table.write(&self.pages, bytes))
    }

    /// Reads the bytes of [`Tables::to_bytes`] into tables with these pieces and options, within the memory
    /// limit; `None` if the bytes do not represent such tables.
    ///
    /// # Errors
    /// If the disk of spilled rows fails.
    pub fn read_from(
        bytes: &[u8],
        pieces: &[Piece],
        options: &[TableOptions],
        limit: Option<&MemoryLimit>,
    ) -> Result<Option<Tables>, Error> {
        let mut tables = Tables::new(pieces, options);
        limit.map_or(Ok(()), |limit| tables.limit(limit))?;
        let mut fields = Fields(bytes);
        for table in &mut tables.tables {
            if table.fill(&mut fields, &mut tables.pages)?.is_none() {
                return Ok(None);
            }
        }
        Ok(fields.end().map(|()| tables))
    }

    /// Returns the largest size in bytes of tables with these pieces and options.
    pub(crate) fn bytes_max(pieces: &[Piece], options: &[TableOptions]) -> usize {
        let bytes = |piece: &Piece| {
            let options = options[piece.table as usize];
            let row = 8 + 4 * options.width * (1 + options.optimizer.rule.slots());
            HEAD_BYTES + (piece.rows.end - piece.rows.start) as usize * row
        };
        pieces.iter().map(bytes).sum()
    }

    /// Appends the values of a pull's rows in the formats of their tables. The pull must have been checked.
    pub(crate) fn answer(&mut self, pull: &Pull, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let start = bytes.len();
        bytes.resize(start + self.answer_bytes(pull), 0);
        self.fill(pull, |table| table.options.values, &mut bytes[start..])
    }
}

impl Table {
    fn written_bytes(&self) -> usize {
        HEAD_BYTES + self.written() * self.row_bytes()
    }

    /// Returns the size of a row in bytes: place in the shard, version, values and state.
    fn row_bytes(&self) -> usize {
        8 + 4 * self.options.width * (1 + self.shape.slots)
    }

    /// Returns the lengths in bytes of the places, versions, values and state of `rows` rows.
    fn part_bytes(&self, rows: usize) -> [usize; 4] {
        let values = 4 * self.options.width * rows;
        [4 * rows, 4 * rows, values, values * self.shape.slots]
    }

    fn write(&self, pages: &Pages, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.extend(self.number.to_le_bytes());
        write_count(self.written(), bytes);
        let start = bytes.len();
        bytes.resize(start + self.written() * self.row_bytes(), 0);
        let mut rest = &mut bytes[start..];
        let [order, versions, values, state] = self
            .part_bytes(self.written())
            .map(|length| rest.split_off_mut(..length).expect("there is room for all rows"));
        for (row, place) in (0_u32..).zip(&self.places) {
            if let Some(place) = place.checked_sub(1) {
                order[4 * place as usize..][..4].copy_from_slice(&row.to_le_bytes());
            }
        }
        self.each_page(|page, rows| {
            let words = pages.peek(page, self.shape.words())?;
            let regions = self.shape.regions(rows.len());
            let [_, starts @ ..] = self.part_bytes(rows.start);
            for ((out, start), region) in
                [&mut *versions, values, state].into_iter().zip(starts).zip(regions)
            {
                let words: &[u8] = bytemuck::must_cast_slice(&words[region]);
                out[start..][..words.len()].copy_from_slice(words);
            }
            Ok(())
        })
    }

    /// Reads rows into a table without written rows; `None` if the bytes do not represent such rows.
    fn fill(&mut self, fields: &mut Fields<'_>, pages: &mut Pages) -> Result<Option<()>, Error> {
        let Some([versions, values, state]) = self.take(fields) else { return Ok(None) };
        self.each_page(|page, rows| {
            let words = pages.edit(page, self.shape.words())?;
            let regions = self.shape.regions(rows.len());
            let [_, starts @ ..] = self.part_bytes(rows.start);
            for ((bytes, start), region) in
                [versions, values, state].into_iter().zip(starts).zip(regions)
            {
                let words: &mut [u8] = bytemuck::must_cast_slice_mut(&mut words[region]);
                let length = words.len();
                words.copy_from_slice(&bytes[start..][..length]);
            }
            Ok(())
        })?;
        Ok(Some(()))
    }

    /// Assigns places to rows, and returns the bytes of their versions, values and state.
    fn take<'a>(&mut self, fields: &mut Fields<'a>) -> Option<[&'a [u8]; 3]> {
        (fields.u32()? == self.number).then_some(())?;
        let written = fields.count(self.row_bytes())?;
        let [order, versions, values, state] = self.part_bytes(written);
        let order: Vec<u32> = bytemuck::pod_collect_to_vec(fields.bytes(order)?);
        for (place, row) in (1..).zip(order) {
            let known = self.places.get_mut(row as usize).filter(|known| **known == 0)?;
            *known = place;
        }
        self.written = written as u32;
        let mut part = |length| fields.bytes(length);
        Some([part(versions)?, part(values)?, part(state)?])
    }

    /// Calls `call` for each page with rows, with its number and the places of its rows.
    fn each_page(
        &self,
        mut call: impl FnMut(u32, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let starts = (0..self.written()).step_by(self.shape.rows);
        (self.first_page..).zip(starts).try_for_each(|(page, start)| {
            call(page, start..self.written().min(start + self.shape.rows))
        })
    }
}

/// Fields of serialised tables that have not been read yet, little-endian; each is `None` if too few bytes
/// are left.
#[derive(Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Reads `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        self.0.split_off(..count)
    }

    /// Reads an integer of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// Reads a number of items, of at least `bytes` bytes each, which the remaining bytes can hold.
    pub fn count(&mut self, bytes: usize) -> Option<usize> {
        let count = self.u32()? as usize;
        (count <= self.0.len() / bytes).then_some(count)
    }

    /// Checks that no byte is left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends a number of items as four bytes.
pub fn write_count(count: usize, bytes: &mut Vec<u8>) {
    let count = u32::try_from(count).expect("fewer than 2^32 items");
    bytes.extend(count.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_member::Id;
    use thinwire_update::Optimizer;

    use super::*;
    use crate::table::Initial;
    use crate::write::{Part, Write};

    fn pieces() -> [Piece; 2] {
        [Piece { table: 0, rows: 10..19 }, Piece { table: 2, rows: 0..3 }]
    }

    fn options() -> [TableOptions; 3] {
        let options = |optimizer, width| TableOptions {
            width,
            optimizer: Optimizer::parse(optimizer).unwrap(),
            initial: Initial::Normal(0.1),
            seed: 5,
            stream: 0,
            values: thinwire_rows::Format::F32,
        };
        [options("lazyadam:lr=1", 2), options("sgd:lr=1", 1), options("sgd:lr=0.5", 3)]
    }

    fn tables(touched: &[u64]) -> Tables {
        let mut tables = Tables::new(&pieces(), &options());
        for row in touched {
            let part = |table, row, width| Part {
                table,
                rows: vec![row],
                gradient: vec![0.5; width].into(),
            };
            let parts = vec![part(0, 10 + row, 2), part(2, row % 3, 3)];
            tables.apply(&Write::Update { pushes: Vec::new(), parts }).unwrap();
        }
        tables
    }

    fn read(bytes: &[u8]) -> Option<Tables> {
        Tables::read_from(bytes, &pieces(), &options(), None).unwrap()
    }

    proptest! {
        #[test]
        fn tables_are_read_back(touched in prop::collection::vec(0_u64..9, 0..20)) {
            let (mut one, bytes) = (tables(&touched), tables(&touched).to_bytes().unwrap());
            prop_assert!(bytes.len() <= Tables::bytes_max(&pieces(), &options()));
            let mut other = read(&bytes).unwrap();
            prop_assert_eq!(&other.to_bytes().unwrap(), &bytes);
            // The optimiser continues from its state.
            let part = Part { table: 0, rows: vec![12], gradient: vec![1.0; 2].into() };
            let write = Write::Update { pushes: Vec::new(), parts: vec![part] };
            one.apply(&write).unwrap();
            other.apply(&write).unwrap();
            prop_assert_eq!(one.to_bytes().unwrap(), other.to_bytes().unwrap());
            let rows = vec![(0, vec![10, 12]), (2, vec![1])];
            let pull = Pull { client: Id(1), request: 1, after: 0, rows };
            let mut answer = Vec::new();
            one.answer(&pull, &mut answer).unwrap();
            let values = one.read(&pull).unwrap();
            prop_assert_eq!(&answer[..], bytemuck::must_cast_slice::<f32, u8>(&values));
            prop_assert_eq!(one.answer_bytes(&pull), 28);
        }

        #[test]
        fn any_bytes_are_refused_or_write_themselves_back(
            touched in prop::collection::vec(0_u64..9, 0..4), at: usize, byte in 0..12_u8, cut: bool
        ) {
            let mut bytes = tables(&touched).to_bytes().unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            if let Some(tables) = read(&bytes) {
                prop_assert_eq!(tables.to_bytes().unwrap(), bytes);
            }
        }
    }
}
