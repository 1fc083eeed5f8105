//! Division of a caller's rows over shards.
//!
//! Callers pass rows in any order and with repetitions. A push has each row once, with the sum of its
//! gradients; a pull is divided into ranges, each the size of one answer. Law: dividing a pull and
//! joining the answers gives the same values as reading the rows one by one, and a push equals the sum
//! in the caller's order.

use std::collections::BTreeMap;
use std::ops::Range;

use thinwire_member::Id;
use thinwire_rows::Format;

use crate::client::rounding::{Rounding, Rule};
use crate::configuration::{Definition, Layout};
use crate::consistency::Consistency;
use crate::error::Error;
use crate::wire::FRAGMENT_BYTES;
use crate::write::{Part, Pull};

/// Largest size of a range in bytes, so that its answer fits in one frame.
const RANGE_BYTES_MAX: usize = FRAGMENT_BYTES - 32;

/// Gradients of some rows of a table.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// Number of the table.
    pub table: u32,
    /// Rows in any order; gradients of repeated rows are summed.
    pub rows: &'a [u64],
    /// Gradients, row by row.
    pub values: &'a [f32],
}

/// Tables of a job, and the shards of their rows.
#[derive(Debug)]
pub struct PartitionMap {
    tables: Vec<TablePartition>,
    shards: usize,
    /// Whether all pushes of a step are one update.
    is_sync: bool,
}

#[derive(Debug)]
struct TablePartition {
    name: String,
    rows: u64,
    width: usize,
    /// Format of the table.
    format: Format,
    /// Whether the optimiser changes only rows with a gradient.
    is_lazy: bool,
    /// For each shard with rows of the table: the end of these rows, and the shard's number.
    pieces: Vec<(u64, u32)>,
}

/// Part of a pull that one shard answers in one message.
#[derive(Debug, Default, PartialEq)]
pub struct PullRange {
    /// Number of the shard.
    pub shard: u32,
    /// Rows, by table number.
    pub rows: Vec<(u32, Vec<u64>)>,
    /// Size of the answer's values in bytes.
    pub bytes: usize,
    /// Byte ranges in the buffer to which the values are copied, in order.
    pub places: Vec<Range<usize>>,
}

/// Pull of a caller, divided into ranges.
#[derive(Debug, Default)]
pub struct Plan {
    /// Ranges, which contain each row once.
    pub ranges: Vec<PullRange>,
    /// Copies within the buffer for repeated rows: source range and target position.
    pub repeats: Vec<(Range<usize>, usize)>,
    /// Length of the buffer in bytes.
    pub length: usize,
    /// Number of the first range's request; the others follow consecutively.
    pub first: u64,
}

impl PartitionMap {
    /// Creates the partition map of a definition and its layout.
    pub fn new(definition: &Definition, layout: &Layout) -> PartitionMap {
        let mut tables: Vec<TablePartition> = Vec::new();
        for (table, options) in definition.tables.iter().zip(&layout.tables) {
            let (name, is_lazy) = (table.name.clone(), options.optimizer.rule.is_lazy());
            let (rows, width, format) = (table.rows, options.width, options.values);
            tables.push(TablePartition { name, rows, width, format, is_lazy, pieces: Vec::new() });
        }
        for (shard, pieces) in (0..).zip(&layout.shards) {
            for piece in pieces {
                tables[piece.table as usize].pieces.push((piece.rows.end, shard));
            }
        }
        let is_sync = layout.consistency == Consistency::Sync;
        PartitionMap { tables, shards: layout.shards.len(), is_sync }
    }

    /// Returns the number of the table with this name.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.tables.iter().position(|table| table.name == name).map(|number| number as u32)
    }

    /// Returns the number of rows of a table and their width.
    pub fn size(&self, table: u32) -> Result<(u64, usize), Error> {
        self.table(table).map(|table| (table.rows, table.width))
    }

    /// Returns the format of a table and the width of its rows.
    ///
    /// # Panics
    /// If there is no such table.
    pub fn format(&self, table: u32) -> (Format, usize) {
        let table = &self.tables[table as usize];
        (table.format, table.width)
    }

    /// Returns whether the values of a table are sent unchanged.
    pub fn is_exact(&self, table: u32) -> bool {
        self.tables.get(table as usize).is_some_and(|table| table.format == Format::F32)
    }

    /// Rounds the parts of a push to the formats of their tables.
    pub fn round(&self, number: u64, shards: &mut [Vec<Part>], rounding: &mut Rounding) {
        for (shard, parts) in (0..).zip(shards) {
            for part in parts {
                let rule = self.rule(shard, part);
                rounding.round(shard, number, rule, part);
            }
        }
    }

    /// Returns how a part for a shard is rounded.
    fn rule(&self, shard: u32, part: &Part) -> Rule {
        let table = &self.tables[part.table as usize];
        let is_whole = part.rows.len() as u64 == table.rows_in(shard);
        Rule { format: table.format, width: table.width, feeds_back: self.is_sync && is_whole }
    }

    /// Divides gradients into parts, by shard.
    pub fn parts(&self, gradients: &[Gradient<'_>]) -> Result<Vec<Vec<Part>>, Error> {
        let mut tables: BTreeMap<u32, Vec<(u64, &[f32])>> = BTreeMap::new();
        for gradient in gradients {
            let table = self.table(gradient.table)?;
            table.check_gradient(gradient)?;
            let rows = gradient.rows.iter().copied();
            let items = rows.zip(gradient.values.chunks_exact(table.width));
            tables.entry(gradient.table).or_default().extend(items);
        }
        let mut shards = vec![Vec::new(); self.shards];
        for (number, mut rows) in tables {
            sort(&mut rows);
            let table = &self.tables[number as usize];
            table.check_all(&rows)?;
            table.deal(number, &rows, &mut shards)?;
        }
        Ok(shards)
    }

    /// Plans a pull into a buffer that holds the values one row after the other, in their tables' formats.
    pub fn plan(&self, groups: &[(u32, &[u64])]) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        let mut tables: BTreeMap<u32, Vec<(u64, usize)>> = BTreeMap::new();
        for (number, rows) in groups {
            let table = self.table(*number)?;
            table.check_rows(rows)?;
            let starts = (plan.length..).step_by(table.row_bytes());
            tables.entry(*number).or_default().extend(rows.iter().copied().zip(starts));
            plan.length += rows.len() * table.row_bytes();
        }
        let mut open = BTreeMap::new();
        for (number, mut rows) in tables {
            sort(&mut rows);
            self.tables[number as usize].divide(number, &rows, &mut open, &mut plan);
        }
        plan.ranges.extend(open.into_values());
        Ok(plan)
    }

    fn table(&self, number: u32) -> Result<&TablePartition, Error> {
        let count = self.tables.len();
        let none = || Error::invalid(format!("table {number}, expected one of 0..{count}"));
        self.tables.get(number as usize).ok_or_else(none)
    }
}

impl TablePartition {
    /// Returns the size of a row on the wire, in bytes.
    fn row_bytes(&self) -> usize {
        self.format.width(self.width)
    }

    fn check_rows(&self, rows: &[u64]) -> Result<(), Error> {
        match rows.iter().find(|row| **row >= self.rows) {
            None => Ok(()),
            Some(row) => {
                let (name, most) = (&self.name, self.rows);
                Err(Error::invalid(format!("row {row} of table '{name}', expected below {most}")))
            }
        }
    }

    fn check_gradient(&self, gradient: &Gradient<'_>) -> Result<(), Error> {
        let (rows, found) = (gradient.rows.len(), gradient.values.len());
        let (name, width) = (&self.name, self.width);
        if found != rows * width {
            return Err(Error::invalid(format!(
                "gradient of {found} values for {rows} rows of table '{name}', expected {width} for each row"
            )));
        }
        self.check_rows(gradient.rows)
    }

    fn check_all(&self, rows: &[(u64, &[f32])]) -> Result<(), Error> {
        let doubles = rows.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
        let found = (rows.len() - doubles) as u64;
        if self.is_lazy || found == self.rows {
            return Ok(());
        }
        let (name, most) = (&self.name, self.rows);
        Err(Error::invalid(format!(
            "{found} rows of table '{name}', expected all {most}, since its optimiser updates all rows"
        ))
        .with_hint("lazyadam, sgd, ftrl and adagrad take any rows"))
    }

    /// Appends ascending rows to the parts of their shards.
    fn deal(
        &self,
        table: u32,
        mut rows: &[(u64, &[f32])],
        shards: &mut [Vec<Part>],
    ) -> Result<(), Error> {
        for (end, shard) in &self.pieces {
            let (mine, rest) = rows.split_at(rows.partition_point(|(row, _)| row < end));
            if !mine.is_empty() {
                shards[*shard as usize].push(self.part(table, mine)?);
            }
            rows = rest;
        }
        Ok(())
    }

    /// Returns ascending rows as a part, summing the gradients of repeated rows.
    fn part(&self, table: u32, items: &[(u64, &[f32])]) -> Result<Part, Error> {
        let mut rows: Vec<u64> = Vec::with_capacity(items.len());
        let mut gradient: Vec<f32> = Vec::with_capacity(items.len() * self.width);
        for (row, values) in items {
            if rows.last() == Some(row) {
                let sum = gradient.len() - self.width;
                gradient[sum..].iter_mut().zip(*values).for_each(|(sum, x)| *sum += x);
            } else {
                rows.push(*row);
                gradient.extend_from_slice(values);
            }
        }
        self.check_range(&rows, &gradient)?;
        Ok(Part { table, rows, gradient: gradient.into() })
    }

    /// Checks that the values of a gradient are in the range of the table's format.
    fn check_range(&self, rows: &[u64], gradient: &[f32]) -> Result<(), Error> {
        let (name, format, most) = (&self.name, self.format, self.format.max());
        // A NaN is in no range.
        let fits = |value: &f32| value.abs() <= most;
        let Some(at) = gradient.iter().position(|value| !fits(value)) else {
            return Ok(());
        };
        let (value, row) = (gradient[at], rows[at / self.width]);
        let found = format!("gradient {value} for row {row} of table '{name}'");
        Err(match value.is_finite() {
            false => Error::invalid(format!("{found}, expected a finite number"))
                .with_hint("this step of this worker counts as a step without gradients"),
            true => Error::invalid(format!("{found}, expected at most {most} in {format}"))
                .with_hint("f32 holds any finite value"),
        })
    }

    /// Returns the number of rows in a shard.
    fn rows_in(&self, shard: u32) -> u64 {
        let starts = [0].into_iter().chain(self.pieces.iter().map(|piece| piece.0));
        let mut pieces = starts.zip(&self.pieces).filter(|(_, piece)| piece.1 == shard);
        pieces.next().map_or(0, |(start, piece)| piece.0 - start)
    }

    /// Appends ascending rows to the ranges of their shards. `open` has the ranges with room.
    fn divide(
        &self,
        table: u32,
        rows: &[(u64, usize)],
        open: &mut BTreeMap<u32, PullRange>,
        plan: &mut Plan,
    ) {
        let mut pieces = self.pieces.iter().copied();
        let mut piece = (0, 0);
        let mut last: Option<(u64, usize)> = None;
        for (row, start) in rows.iter().copied() {
            if let Some((_, first)) = last.filter(|(known, _)| *known == row) {
                plan.repeats.push((first..first + self.row_bytes(), start));
                continue;
            }
            last = Some((row, start));
            while row >= piece.0 {
                piece = pieces.next().expect("every row has a shard");
            }
            let range = open.entry(piece.1).or_default();
            if range.bytes + self.row_bytes() > RANGE_BYTES_MAX {
                plan.ranges.push(std::mem::take(range));
            }
            range.shard = piece.1;
            range.append(table, row, start..start + self.row_bytes());
        }
    }
}

impl PullRange {
    fn append(&mut self, table: u32, row: u64, place: Range<usize>) {
        self.bytes += place.len();
        match self.places.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => self.places.push(place),
        }
        match self.rows.last_mut() {
            Some((last, rows)) if *last == table => rows.push(row),
            _ => self.rows.push((table, vec![row])),
        }
    }

    /// Takes the rows out of the range and returns them as a pull request of a client.
    pub fn pull(&mut self, client: Id, request: u64, after: u64) -> Pull {
        Pull { client, request, after, rows: std::mem::take(&mut self.rows) }
    }

    /// Copies the values of the answer to their positions in `out`.
    pub fn copy(&self, values: &[u8], out: &mut [u8]) {
        let mut rest = values;
        for place in &self.places {
            let (head, tail) = rest.split_at(place.len());
            out[place.clone()].copy_from_slice(head);
            rest = tail;
        }
    }
}

/// Sorts items by row, stably.
fn sort<T>(rows: &mut [(u64, T)]) {
    if !rows.is_sorted_by_key(|(row, _)| *row) {
        rows.sort_by_key(|(row, _)| *row);
    }
}

#[cfg(test)]
mod tests;
