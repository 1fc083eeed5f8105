//! All tables of a shard.

use thinwire_rows::Format;

use super::pages::{MemoryLimit, Pages};
use super::shape::Shape;
use super::{SchemaError, Table, TableOptions};
use crate::cut::Piece;
use crate::error::Error;
use crate::write::{Part, Pull, Write};

/// All tables of a shard.
#[derive(Debug, Default)]
pub struct Tables {
    pub(super) tables: Vec<Table>,
    pub(super) pages: Pages,
}

impl Tables {
    /// Creates the tables of a shard, with no row written. `options` has an item per table of the job.
    ///
    /// # Panics
    /// If the shard has 2^32 rows or more.
    pub fn new(pieces: &[Piece], options: &[TableOptions]) -> Tables {
        let mut pages = 0_u32;
        let mut table = |piece: &Piece| {
            let table = Table::new(piece, options[piece.table as usize], pages);
            pages = pages.checked_add(table.pages()).expect("fewer than 2^32 rows");
            table
        };
        let tables = pieces.iter().map(&mut table).collect();
        Tables { tables, pages: Pages::new(pages as usize) }
    }

    /// Sets the memory limit of the rows; rows beyond it are spilled to a file. The bookkeeping of all rows
    /// (about four bytes each) and one page stay in memory, whatever the limit.
    ///
    /// # Errors
    /// If the disk fails. The tables are then unusable, and every call fails.
    pub fn limit(&mut self, limit: &MemoryLimit) -> Result<(), Error> {
        let page_bytes = self.tables.iter().map(|table| 4 * table.shape.words()).max();
        let places = self.place_bytes() as u64;
        let bytes_max = limit.bytes_max.saturating_sub(places);
        self.pages.limit(&MemoryLimit { bytes_max, ..limit.clone() }, page_bytes.unwrap_or(0))
    }

    /// Returns the smallest memory of tables with these pieces and options, in bytes.
    pub(crate) fn least_bytes(pieces: &[Piece], options: &[TableOptions]) -> u64 {
        let (mut places, mut pages, mut longest) = (0, 0, 0);
        for piece in pieces {
            let TableOptions { width, optimizer, .. } = options[piece.table as usize];
            let rows = piece.rows.end - piece.rows.start;
            let shape = Shape::new(rows, width, optimizer.rule.slots());
            places += 4 * rows;
            pages += rows.div_ceil(shape.rows as u64);
            longest = longest.max(4 * shape.words() as u64);
        }
        // One page is always in memory.
        places + Pages::least_bytes(pages) + longest
    }

    /// Checks that a push can be applied; to be called before the shard gets the push.
    ///
    /// # Errors
    /// If a table, a row or a length does not fit.
    pub fn check_push(&self, parts: &[Part]) -> Result<(), SchemaError> {
        let descends = |pair: &&[Part]| pair[0].table >= pair[1].table;
        if let Some(pair) = parts.windows(2).find(descends) {
            return Err(SchemaError::Table(pair[1].table));
        }
        parts.iter().try_for_each(|part| self.table(part.table)?.check_part(part))
    }

    /// Checks that a pull can be answered.
    ///
    /// # Errors
    /// If a table or a row does not fit.
    pub fn check_pull(&self, pull: &Pull) -> Result<(), SchemaError> {
        pull.rows.iter().try_for_each(|(table, rows)| self.table(*table)?.check_rows(rows))
    }

    /// Applies a write whose pushes were checked.
    ///
    /// # Errors
    /// If the disk of spilled rows fails. Part of the write may have been applied, and every further call
    /// fails.
    pub fn apply(&mut self, write: &Write) -> Result<(), Error> {
        let Write::Update { parts, .. } = write else { return Ok(()) };
        let Tables { tables, pages } = self;
        pages.check()?;
        parts.iter().try_for_each(|part| {
            let table = tables.iter_mut().find(|table| table.number == part.table);
            table.expect("it was checked").update(part, pages)
        })
    }

    /// Sets the values of unwritten rows from `first` on, row by row. The rows then count as written,
    /// although no push has updated them.
    ///
    /// # Errors
    /// If the disk of spilled rows fails.
    ///
    /// # Panics
    /// If the shard does not have these rows.
    pub(crate) fn begin(&mut self, table: u32, first: u64, values: &[f32]) -> Result<(), Error> {
        let Tables { tables, pages } = self;
        let table = tables.iter_mut().find(|it| it.number == table);
        table.expect("a table of the shard").set(first, values, pages)
    }

    /// Returns the values of a pull's rows. The pull must have been checked.
    ///
    /// # Errors
    /// If the disk of spilled rows fails.
    pub fn read(&mut self, pull: &Pull) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.values(pull)];
        let out = bytemuck::must_cast_slice_mut(&mut values);
        self.fill(pull, |_| Format::F32, out).map(|()| values)
    }

    /// Writes the values of a pull's rows in order, in the formats of their tables. The pull must have been
    /// checked.
    pub(super) fn fill(
        &mut self,
        pull: &Pull,
        format: impl Fn(&Table) -> Format,
        mut out: &mut [u8],
    ) -> Result<(), Error> {
        let Tables { tables, pages } = self;
        pages.check()?;
        for (number, rows) in &pull.rows {
            let table = tables.iter().find(|table| table.number == *number);
            let table = table.expect("it was checked");
            let format = format(table);
            let part = out.split_off_mut(..rows.len() * format.width(table.options.width));
            table.read(rows, format, pages, part.expect("there is room for all rows"))?;
        }
        Ok(())
    }

    /// Returns the size in bytes of the answer to a pull, in the formats of its tables. The pull must have
    /// been checked.
    pub(crate) fn answer_bytes(&self, pull: &Pull) -> usize {
        let row = |table: &Table| table.options.values.width(table.options.width);
        let row = |number: u32| self.table(number).map_or(0, row);
        pull.rows.iter().map(|(table, rows)| rows.len() * row(*table)).sum()
    }

    /// Returns the number of values of a pull's rows. The pull must have been checked.
    fn values(&self, pull: &Pull) -> usize {
        let width = |table: u32| self.table(table).map_or(0, |table| table.options.width);
        pull.rows.iter().map(|(table, rows)| rows.len() * width(*table)).sum()
    }

    /// Returns the tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Returns the memory of the rows in bytes.
    pub fn bytes(&self) -> u64 {
        (self.place_bytes() + self.pages.bytes()) as u64
    }

    /// Returns the bytes of rows that are only in a file.
    pub fn spilled_bytes(&self) -> u64 {
        self.pages.evicted_bytes()
    }

    fn place_bytes(&self) -> usize {
        4 * self.tables.iter().map(|table| table.places.len()).sum::<usize>()
    }

    pub(super) fn table(&self, number: u32) -> Result<&Table, SchemaError> {
        self.tables.iter().find(|table| table.number == number).ok_or(SchemaError::Table(number))
    }
}

#[cfg(test)]
impl Tables {
    /// Spills rows beyond one page to a full disk.
    pub fn fill_disk(&mut self) {
        self.pages.spill_into(super::page_file::PageFile::full(), 4096);
    }
}

#[cfg(test)]
mod tests {
    use thinwire_update::Optimizer;

    use super::*;
    use crate::table::Initial;

    fn options(optimizer: &str, initial: Initial) -> TableOptions {
        let optimizer = Optimizer::parse(optimizer).unwrap();
        TableOptions { width: 3, optimizer, initial, seed: 5, stream: 0, values: Format::F32 }
    }

    fn tables(optimizer: &str) -> Tables {
        let piece = Piece { table: 0, rows: 10..16 };
        Tables::new(&[piece], &[options(optimizer, Initial::Normal(0.1))])
    }

    fn part(rows: &[u64], length: usize) -> Part {
        Part { table: 0, rows: rows.to_vec(), gradient: vec![1.0; length].into() }
    }

    fn pull(rows: &[u64]) -> Pull {
        Pull {
            client: thinwire_member::Id(1),
            request: 1,
            after: 0,
            rows: vec![(0, rows.to_vec())],
        }
    }

    #[test]
    fn rows_are_made_by_writes_alone_and_begin_as_they_were_read() {
        let mut tables = tables("sgd:lr=0.5");
        let before = tables.read(&pull(&[11, 14])).unwrap();
        assert_eq!(tables.tables()[0].written(), 0);
        tables.apply(&Write::Update { pushes: Vec::new(), parts: vec![part(&[14], 3)] }).unwrap();
        let after = tables.read(&pull(&[11, 14])).unwrap();
        assert_eq!(tables.tables()[0].written(), 1);
        assert_eq!(after[..3], before[..3]);
        let expected: Vec<f32> = before[3..].iter().map(|value| value - 0.5).collect();
        assert_eq!(after[3..], expected);
    }

    #[test]
    fn no_bit_depends_on_how_rows_are_dealt() {
        let options = [options("lazyadam:lr=0.1", Initial::Uniform(0.3))];
        let piece = |rows| [Piece { table: 0, rows }];
        let mut whole = Tables::new(&piece(0..8), &options);
        let mut half = Tables::new(&piece(4..8), &options);
        for rows in [vec![1, 5], vec![5, 6], vec![0, 7]] {
            let upper: Vec<u64> = rows.iter().copied().filter(|row| *row >= 4).collect();
            let length = upper.len() * 3;
            let write = |part| Write::Update { pushes: Vec::new(), parts: vec![part] };
            whole.apply(&write(part(&rows, 6))).unwrap();
            half.apply(&write(part(&upper, length))).unwrap();
        }
        let rows = pull(&[4, 5, 6, 7]);
        assert_eq!(whole.read(&rows).unwrap(), half.read(&rows).unwrap());
    }

    #[test]
    fn refusals_name_both_values() {
        let refusal =
            |optimizer, part: Part| tables(optimizer).check_push(&[part]).unwrap_err().to_string();
        let lazy = "sgd:lr=1";
        let rows = "row 16 of table 0, expected ascending rows of 10..16";
        assert_eq!(refusal(lazy, part(&[12, 16], 6)), rows);
        let order = "row 12 of table 0, expected ascending rows of 10..16";
        assert_eq!(refusal(lazy, part(&[12, 12], 6)), order);
        let length = "gradient of 5 values for table 0, expected 6";
        assert_eq!(refusal(lazy, part(&[12, 13], 5)), length);
        let partial = refusal("adam:lr=1", part(&[12], 3));
        assert!(partial.starts_with("1 rows of table 0, expected all 6"), "{partial}");
        let table = refusal(lazy, Part { table: 1, ..part(&[], 0) });
        assert_eq!(table, "table 1, expected tables of the shard in ascending order");
        assert_eq!(tables(lazy).check_push(&[part(&[10, 15], 6)]), Ok(()));
        assert!(tables(lazy).check_pull(&pull(&[9])).is_err());
    }
}
