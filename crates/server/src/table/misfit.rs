//! Errors for rows and gradients that do not fit the tables of a shard.

use std::fmt;
use std::ops::Range;

/// Error for rows or gradients that do not fit the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit {
    /// The shard has no rows of this table, or the tables are not in ascending order.
    Table(u32),
    /// A row is in another shard, or the rows are not in ascending order.
    Row {
        /// Number of the table.
        table: u32,
        /// The row.
        row: u64,
        /// Rows of the table in the shard.
        expected: Range<u64>,
    },
    /// The gradient does not have the length of its rows.
    Length {
        /// Number of the table.
        table: u32,
        /// Length of the gradient.
        found: usize,
        /// Length that its rows need.
        expected: usize,
    },
    /// The optimiser also changes rows without a gradient, and the push lacks rows.
    Partial {
        /// Number of the table.
        table: u32,
        /// Number of rows in the push.
        found: usize,
        /// Number of rows in the shard.
        expected: usize,
    },
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
