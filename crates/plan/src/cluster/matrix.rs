//! Table of a level in a cluster file, and its matrices, which describe the links between the level's
//! members.

use serde::Deserialize;

use super::Links;
use super::range::{GBIT, Range, TIME_US, within};
use crate::Error;

/// Largest number of members of a matrix; a larger matrix is refused as a mistake.
const MEMBERS_MAX: usize = 1024;

/// Level of a cluster file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LevelTable {
    pub name: String,
    pub size: usize,
    pub latency_us: Option<f64>,
    pub gbit: Option<f64>,
    pub latency_us_matrix: Option<Vec<Vec<f64>>>,
    pub gbit_matrix: Option<Vec<Vec<f64>>>,
}

/// Field of a level, given as one number or as a matrix.
struct Field<'a> {
    name: &'a str,
    one: Option<f64>,
    rows: Option<&'a [Vec<f64>]>,
    /// Factor that converts the field's unit to the unit of the result.
    scale: f64,
    /// Value that the diagonal gets.
    own: f64,
    range: Range,
}

/// Returns the links of a level, if a matrix describes them.
pub(super) fn links(about: &str, table: &LevelTable) -> Result<Option<Links>, Error> {
    if table.gbit_matrix.is_none() && table.latency_us_matrix.is_none() {
        return Ok(None);
    }
    let size = table.size;
    if size > MEMBERS_MAX {
        let found = format!("a matrix of {size} members, expected at most {MEMBERS_MAX}");
        return Err(Error::file(format!("{about}: {found}")));
    }
    let gbit = Field {
        name: "gbit",
        one: table.gbit,
        rows: table.gbit_matrix.as_deref(),
        scale: 1e9 / 8.0,
        own: f64::INFINITY,
        range: GBIT,
    };
    let latency_us = Field {
        name: "latency_us",
        one: table.latency_us,
        rows: table.latency_us_matrix.as_deref(),
        scale: 1e-6,
        own: 0.0,
        range: TIME_US,
    };
    let (bytes_per_s, latency_s) = (matrix(about, size, &gbit)?, matrix(about, size, &latency_us)?);
    let links = Links { latency_s, bytes_per_s };
    Ok((size > 1).then_some(links))
}

/// Returns a matrix from its rows, or from one number for all links.
fn matrix(about: &str, size: usize, field: &Field<'_>) -> Result<Vec<Vec<f64>>, Error> {
    let wrong = |found: String| Error::file(format!("{about}: {found}"));
    let Field { name: field, one, rows, scale, own, range } = *field;
    let mut all = match (one, rows) {
        (None, None) => {
            return Err(Error::file(format!("{about} has no {field}, expected a number")));
        }
        (Some(_), Some(_)) => {
            return Err(wrong(format!("both {field} and {field}_matrix, expected one of them")));
        }
        (Some(value), None) => vec![vec![within(about, field, value, range)?; size]; size],
        (None, Some(rows)) => square(&format!("{field}_matrix"), size, rows).map_err(wrong)?,
    };
    for (from, row) in all.iter_mut().enumerate() {
        for (to, value) in row.iter_mut().enumerate() {
            let place = format!("{field}_matrix from {} to {}", from + 1, to + 1);
            *value = if from == to { own } else { scale * within(about, &place, *value, range)? };
        }
    }
    Ok(all)
}

/// Returns the rows, if their number and lengths equal the number of members.
fn square(field: &str, size: usize, rows: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, String> {
    if rows.len() != size {
        return Err(format!("{field} has {} rows, expected {size}", rows.len()));
    }
    match rows.iter().position(|row| row.len() != size) {
        None => Ok(rows.to_vec()),
        Some(at) => {
            let (row, length) = (at + 1, rows[at].len());
            Err(format!("row {row} of {field} has {length} numbers, expected {size}"))
        }
    }
}
