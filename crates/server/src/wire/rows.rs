//! Rows and values as bytes.
//!
//! Neighbouring rows are a run, whose first row and length travel: a dense gradient has no ids.

use thinwire_member::Fields;

use super::fields::{count, floats, id, number, write_count, write_floats, write_u64};
use crate::write::{Part, Pull};

/// Most rows of the runs of one pull, which take memory that was not sent.
pub const PULL_ROWS_MAX: usize = 1 << 18;

const LIST: u8 = 0;
const RUN: u8 = 1;

/// Whether rows follow each other, are at most `max`, and end before the last row of 64 bits.
fn is_run(rows: &[u64], max: usize) -> bool {
    let follows = |pair: &[u64]| pair[0].checked_add(1) == Some(pair[1]);
    let ends = rows.last().is_some_and(|last| *last < u64::MAX);
    ends && (2..=max).contains(&rows.len()) && rows.windows(2).all(follows)
}

/// Appends rows; as a run if they are one of at most `max` rows.
fn write_rows(rows: &[u64], max: usize, bytes: &mut Vec<u8>) {
    if is_run(rows, max) {
        bytes.push(RUN);
        write_u64(rows[0], bytes);
        return write_count(rows.len(), bytes);
    }
    bytes.push(LIST);
    write_count(rows.len(), bytes);
    bytes.extend_from_slice(bytemuck::must_cast_slice(rows));
}

fn read_rows(fields: &mut Fields<'_>, max: usize) -> Option<Vec<u64>> {
    match fields.u8().ok()? {
        RUN => {
            let (first, length) = (fields.u64().ok()?, fields.u32().ok()?);
            let end = first.checked_add(u64::from(length))?;
            (2..=max).contains(&(length as usize)).then(|| (first..end).collect())
        }
        LIST => {
            let length = count(fields, 8)?;
            let rows: Vec<u64> = bytemuck::pod_collect_to_vec(fields.bytes(8 * length).ok()?);
            (!is_run(&rows, max)).then_some(rows)
        }
        _ => None,
    }
}

/// Appends gradients.
pub fn write_parts(parts: &[Part], bytes: &mut Vec<u8>) {
    let length: usize = parts.iter().map(|part| 25 + 4 * part.gradient.len()).sum();
    bytes.reserve(length);
    write_count(parts.len(), bytes);
    for part in parts {
        bytes.extend(part.table.to_le_bytes());
        write_count(part.gradient.len(), bytes);
        write_rows(&part.rows, part.gradient.len(), bytes);
        write_floats(&part.gradient, bytes);
    }
}

/// Reads gradients.
pub fn read_parts(fields: &mut Fields<'_>) -> Option<Vec<Part>> {
    let part = |fields: &mut Fields<'_>| {
        let table = fields.u32().ok()?;
        // A run is no longer than the values that follow.
        let values = count(fields, 4)?;
        let rows = read_rows(fields, values)?;
        Some(Part { table, rows, gradient: floats(fields, values)? })
    };
    let parts = count(fields, 13)?;
    (0..parts).map(|_| part(fields)).collect()
}

/// Appends a pull.
pub fn write_pull(pull: &Pull, bytes: &mut Vec<u8>) {
    [pull.client.0, pull.request, pull.after].iter().for_each(|field| write_u64(*field, bytes));
    write_count(pull.rows.len(), bytes);
    let mut max = PULL_ROWS_MAX;
    for (table, rows) in &pull.rows {
        bytes.extend(table.to_le_bytes());
        write_rows(rows, max, bytes);
        max = max.saturating_sub(rows.len());
    }
}

/// Reads a pull.
pub fn read_pull(fields: &mut Fields<'_>) -> Option<Pull> {
    let client = id(fields)?;
    let (request, after) = (fields.u64().ok()?, number(fields)?);
    let mut max = PULL_ROWS_MAX;
    let mut table = |fields: &mut Fields<'_>| {
        let table = fields.u32().ok()?;
        let rows = read_rows(fields, max)?;
        max = max.saturating_sub(rows.len());
        Some((table, rows))
    };
    let tables = count(fields, 9)?;
    let rows = (0..tables).map(|_| table(fields)).collect::<Option<_>>()?;
    Some(Pull { client, request, after, rows })
}
