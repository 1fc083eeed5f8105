//! Rows of one shard: values, state of the optimiser and versions, made on first touch.
//!
//! A row that was never written is a pure function of seed, table and row, and takes four bytes. Reading
//! makes none. Replicas that apply equal writes have equal bits.

mod bytes;

use std::fmt;
use std::ops::Range;

use thinwire_update::{Optimizer, Rows};
use thinwire_wire::random::Key;

use crate::cut::Piece;
use crate::write::{Part, Pull, Write};

/// First values of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Zeros.
    Zeros,
    /// This number everywhere.
    Constant(f32),
    /// Uniform from minus this number to this number.
    Uniform(f32),
    /// Normal with this standard deviation.
    Normal(f32),
}

/// Settings of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions {
    /// Values per row.
    pub width: usize,
    /// Optimiser of the table.
    pub optimizer: Optimizer,
    /// First values.
    pub initial: Initial,
    /// Seed of the first values.
    pub seed: u64,
    /// Stream of random numbers of the first values, for tables that must begin independently.
    pub stream: u32,
}

/// Rows of a table that are in one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    number: u32,
    options: TableOptions,
    range: Range<u64>,
    /// Place of each row plus 1; 0 for rows that nobody has written.
    places: Vec<u32>,
    values: Vec<f32>,
    state: Vec<f32>,
    versions: Vec<u32>,
}

/// All tables of one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    tables: Vec<Table>,
}

/// Refusal of rows or gradients that do not fit the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit {
    /// The shard has no rows of this table, or the tables are out of order.
    Table(u32),
    /// A row lies in another shard, or the rows do not ascend.
    Row {
        /// Number of the table.
        table: u32,
        /// The row.
        row: u64,
        /// Rows of the shard.
        expected: Range<u64>,
    },
    /// The gradient is not as long as its rows.
    Length {
        /// Number of the table.
        table: u32,
        /// Length of the gradient.
        found: usize,
        /// Length that its rows need.
        expected: usize,
    },
    /// The table's optimiser also moves rows without a gradient, and the push has not all rows.
    Partial {
        /// Number of the table.
        table: u32,
        /// Rows of the push.
        found: usize,
        /// Rows of the shard.
        expected: usize,
    },
}

impl Initial {
    /// Reads `zeros`, `uniform:0.05` or `normal:0.01`.
    ///
    /// # Errors
    /// If the text is another, or the number is negative or infinite.
    pub fn parse(text: &str) -> Result<Initial, InvalidInitial> {
        let invalid = || InvalidInitial(text.to_owned());
        let (name, number) = text.split_once(':').unwrap_or((text, ""));
        let number = number.parse().ok().filter(|number: &f32| number.is_finite());
        match (name, number.filter(|number| *number >= 0.0 || name == "constant")) {
            ("zeros", None) if text == name => Ok(Initial::Zeros),
            ("constant", Some(value)) => Ok(Initial::Constant(value)),
            ("uniform", Some(bound)) => Ok(Initial::Uniform(bound)),
            ("normal", Some(deviation)) => Ok(Initial::Normal(deviation)),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for Initial {
    /// The text that [`Initial::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Initial::Zeros => f.write_str("zeros"),
            Initial::Constant(value) => write!(f, "constant:{value}"),
            Initial::Uniform(bound) => write!(f, "uniform:{bound}"),
            Initial::Normal(deviation) => write!(f, "normal:{deviation}"),
        }
    }
}

/// Refusal of the text of first values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidInitial(String);

impl fmt::Display for InvalidInitial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = "expected zeros, constant:VALUE, uniform:BOUND or normal:DEVIATION";
        write!(f, "first values '{}', {expected}", self.0)
    }
}

impl std::error::Error for InvalidInitial {}

impl Tables {
    /// The tables of a shard, none of whose rows was written. `options` has an item per table.
    pub fn new(pieces: &[Piece], options: &[TableOptions]) -> Tables {
        let table = |piece: &Piece| {
            Table::new(piece.table, options[piece.table as usize], piece.rows.clone())
        };
        Tables { tables: pieces.iter().map(table).collect() }
    }

    /// Checks that a push can be applied, before it is given to the shard.
    ///
    /// # Errors
    /// If a table, a row or a length does not fit.
    pub fn check_push(&self, parts: &[Part]) -> Result<(), Misfit> {
        let descends = |pair: &&[Part]| pair[0].table >= pair[1].table;
        if let Some(pair) = parts.windows(2).find(descends) {
            return Err(Misfit::Table(pair[1].table));
        }
        parts.iter().try_for_each(|part| self.table(part.table)?.check_part(part))
    }

    /// Checks that a pull can be answered.
    ///
    /// # Errors
    /// If a table or a row does not fit.
    pub fn check_pull(&self, pull: &Pull) -> Result<(), Misfit> {
        pull.rows.iter().try_for_each(|(table, rows)| self.table(*table)?.check_rows(rows))
    }

    /// Applies a write whose pushes were checked.
    pub fn apply(&mut self, write: &Write) {
        let Write::Update { parts, .. } = write else { return };
        for part in parts {
            let mut tables = self.tables.iter_mut();
            let table = tables.find(|table| table.number == part.table).expect("it was checked");
            table.update(&part.rows, &part.gradient);
        }
    }

    /// Returns the values of a pull's rows, which was checked.
    pub fn read(&self, pull: &Pull) -> Vec<f32> {
        let mut values = Vec::new();
        for (table, rows) in &pull.rows {
            let table = self.table(*table).expect("it was checked");
            rows.iter().for_each(|row| table.read(*row, &mut values));
        }
        values
    }

    /// Returns the tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    fn table(&self, number: u32) -> Result<&Table, Misfit> {
        self.tables.iter().find(|table| table.number == number).ok_or(Misfit::Table(number))
    }
}

impl Table {
    /// The rows `range` of table `number`.
    pub fn new(number: u32, options: TableOptions, range: Range<u64>) -> Table {
        let places = vec![0; (range.end - range.start) as usize];
        let (values, state, versions) = (Vec::new(), Vec::new(), Vec::new());
        Table { number, options, range, places, values, state, versions }
    }

    /// Returns the number of rows that were written.
    pub fn written(&self) -> usize {
        self.versions.len()
    }

    /// Returns the number of times that a row was written.
    pub fn version(&self, row: u64) -> u32 {
        self.place(row).map_or(0, |place| self.versions[place])
    }

    /// Appends the values of a row.
    pub fn read(&self, row: u64, values: &mut Vec<f32>) {
        let width = self.options.width;
        match self.place(row) {
            Some(place) => values.extend_from_slice(&self.values[place * width..][..width]),
            None => self.begin(row, values),
        }
    }

    /// Updates rows from a gradient with a row for each of them.
    pub fn update(&mut self, rows: &[u64], gradient: &[f32]) {
        let places: Vec<u32> = rows.iter().map(|row| self.touch(*row)).collect();
        let Table { options, values, state, versions, .. } = self;
        let mut rows = Rows { width: options.width, values, state, updates: versions };
        options.optimizer.update_rows(&mut rows, &places, gradient);
    }

    /// Returns the place of a row, which is made if it is not there.
    fn touch(&mut self, row: u64) -> u32 {
        let at = (row - self.range.start) as usize;
        if self.places[at] == 0 {
            let mut values = std::mem::take(&mut self.values);
            reserve(&mut values, self.options.width);
            self.begin(row, &mut values);
            self.values = values;
            let slots = self.options.optimizer.rule.slots() * self.options.width;
            reserve(&mut self.state, slots);
            self.state.resize(self.state.len() + slots, 0.0);
            self.versions.push(0);
            self.places[at] = self.versions.len() as u32;
        }
        self.places[at] - 1
    }

    /// Appends the first values of a row.
    fn begin(&self, row: u64, values: &mut Vec<f32>) {
        // A row is what a trainer's parameter of this shape has there in the beginning.
        let key = Key { seed: self.options.seed, step: 0, tensor: self.options.stream };
        let width = self.options.width as u64;
        let columns = row * width..(row + 1) * width;
        match self.options.initial {
            Initial::Zeros => values.extend(columns.map(|_| 0.0)),
            Initial::Constant(value) => values.extend(columns.map(|_| value)),
            Initial::Uniform(bound) => {
                values.extend(columns.map(|column| bound * (2.0 * key.uniform(column) - 1.0)));
            }
            Initial::Normal(deviation) => {
                values.extend(columns.map(|column| key.normal(column) * deviation));
            }
        }
    }

    fn place(&self, row: u64) -> Option<usize> {
        (self.places[(row - self.range.start) as usize] as usize).checked_sub(1)
    }

    fn check_rows(&self, rows: &[u64]) -> Result<(), Misfit> {
        let ascends = |at: usize| at == 0 || rows[at - 1] < rows[at];
        let fits = |at: &usize| self.range.contains(&rows[*at]) && ascends(*at);
        match (0..rows.len()).find(|at| !fits(at)) {
            None => Ok(()),
            Some(at) => {
                let expected = self.range.clone();
                Err(Misfit::Row { table: self.number, row: rows[at], expected })
            }
        }
    }

    fn check_part(&self, part: &Part) -> Result<(), Misfit> {
        let table = self.number;
        self.check_rows(&part.rows)?;
        let (found, expected) = (part.gradient.len(), part.rows.len() * self.options.width);
        if found != expected {
            return Err(Misfit::Length { table, found, expected });
        }
        let (found, expected) = (part.rows.len(), self.places.len());
        if !self.options.optimizer.rule.is_lazy() && found != expected {
            return Err(Misfit::Partial { table, found, expected });
        }
        Ok(())
    }
}

/// Makes room for `more` elements; a full buffer grows by an eighth, since it may be most of the memory.
fn reserve(buffer: &mut Vec<f32>, more: usize) {
    if buffer.capacity() - buffer.len() < more {
        buffer.reserve_exact(more.max(buffer.len() / 8));
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Table(table) => {
                write!(f, "table {table}, expected tables of the shard in ascending order")
            }
            Misfit::Row { table, row, expected: Range { start, end } } => {
                write!(f, "row {row} of table {table}, expected ascending rows of {start}..{end}")
            }
            Misfit::Length { table, found, expected } => {
                write!(f, "gradient of {found} values for table {table}, expected {expected}")
            }
            Misfit::Partial { table, found, expected } => write!(
                f,
                "{found} rows of table {table}, expected all {expected}, as its optimiser moves all; \
                 hint: lazyadam, sgd, ftrl and adagrad take any rows"
            ),
        }
    }
}

impl std::error::Error for Misfit {}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(optimizer: &str, initial: Initial) -> TableOptions {
        let optimizer = Optimizer::parse(optimizer).unwrap();
        TableOptions { width: 3, optimizer, initial, seed: 5, stream: 0 }
    }

    fn tables(optimizer: &str) -> Tables {
        let piece = Piece { table: 0, rows: 10..16 };
        Tables::new(&[piece], &[options(optimizer, Initial::Normal(0.1))])
    }

    fn part(rows: &[u64], length: usize) -> Part {
        Part { table: 0, rows: rows.to_vec(), gradient: vec![1.0; length] }
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
        let before = tables.read(&pull(&[11, 14]));
        assert_eq!(tables.tables()[0].written(), 0);
        tables.apply(&Write::Update { pushes: Vec::new(), parts: vec![part(&[14], 3)] });
        let after = tables.read(&pull(&[11, 14]));
        assert_eq!(tables.tables()[0].written(), 1);
        assert_eq!(after[..3], before[..3]);
        let expected: Vec<f32> = before[3..].iter().map(|value| value - 0.5).collect();
        assert_eq!(after[3..], expected);
        assert_eq!([11, 14].map(|row| tables.tables()[0].version(row)), [0, 1]);
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
            whole.apply(&write(part(&rows, 6)));
            half.apply(&write(part(&upper, length)));
        }
        assert_eq!(whole.read(&pull(&[4, 5, 6, 7])), half.read(&pull(&[4, 5, 6, 7])));
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
