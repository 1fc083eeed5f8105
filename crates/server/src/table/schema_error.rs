//! Errors for rows and gradients that do not fit the tables of a shard.

use std::ops::Range;

/// Error for rows or gradients that do not fit the tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The shard has no rows of this table, or the tables are not in ascending order.
    #[error("table {0}, expected tables of the shard in ascending order")]
    Table(u32),
    /// A row is in another shard, or the rows are not in ascending order.
    #[error("row {row} of table {table}, expected ascending rows of {expected:?}")]
    Row {
        /// Number of the table.
        table: u32,
        /// The row.
        row: u64,
        /// Rows of the table in the shard.
        expected: Range<u64>,
    },
    /// The gradient does not have the length of its rows.
    #[error("gradient of {found} values for table {table}, expected {expected}")]
    Length {
        /// Number of the table.
        table: u32,
        /// Length of the gradient.
        found: usize,
        /// Length that its rows need.
        expected: usize,
    },
    /// The optimiser also changes rows without a gradient, and the push lacks rows.
    #[error(
        "{found} rows of table {table}, expected all {expected}, since its optimiser updates all rows; \
         hint: lazyadam, sgd, ftrl and adagrad take any rows"
    )]
    Partial {
        /// Number of the table.
        table: u32,
        /// Number of rows in the push.
        found: usize,
        /// Number of rows in the shard.
        expected: usize,
    },
}
