//! Tables in plain text: columns two spaces apart, the first aligned to the left, the others to the
//! right.

use std::fmt;

use crate::escaping;

/// A header, and rows with the same number of cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with only a header.
    pub fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Table {
        Table { rows: vec![header.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        // A name from a file may hold what would look like a row of its own.
        self.rows.push(cells.into_iter().map(|cell| escaping::line(&cell.into())).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell: &String| cell.chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Padded by hand: a width of the formatter is at most 65,535.
                let space = " ".repeat(width - cell.chars().count());
                match column {
                    0 => line += &format!("{cell}{space}"),
                    _ => line += &format!("  {space}{cell}"),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_may_be_of_any_length() {
        let long = "x".repeat(70_000);
        let mut table = Table::new(["a", long.as_str()]);
        table.row(["b", "c"]);
        assert_eq!(table.to_string().lines().last().map(str::len), Some(70_003));
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["codec", "bytes"]);
        table.row(["none", "4.00 MB"]);
        table.row(["topk:0.01", "63 kB"]);
        assert_eq!(
            table.to_string(),
            "codec        bytes\nnone       4.00 MB\ntopk:0.01    63 kB\n"
        );
    }
}
