//! Serialisation of rows and values.
//!
//! Consecutive rows are sent as a run, its first row and its length, so a dense gradient has no row numbers.

use thinwire_member::Fields;
use thinwire_rows::Format;

use super::fields::{count, id, number, write_count, write_u64};
use crate::values::Values;
use crate::write::{Part, Pull};

/// Largest number of rows in the runs of one pull: they take memory in the receiver but few bytes on the
/// wire.
pub const PULL_ROWS_MAX: usize = 1 << 18;

const LIST: u8 = 0;
const RUN: u8 = 1;

/// Returns whether rows are consecutive, at most `max`, and below the largest 64-bit number.
fn is_run(rows: &[u64], max: usize) -> bool {
    let follows = |pair: &[u64]| pair[0].checked_add(1) == Some(pair[1]);
    let ends = rows.last().is_some_and(|last| *last < u64::MAX);
    ends && (2..=max).contains(&rows.len()) && rows.windows(2).all(follows)
}

/// Appends rows, as a run if they are at most `max` consecutive rows.
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

/// Appends the parts of a push.
pub fn write_parts(parts: &[Part], bytes: &mut Vec<u8>) {
    let length: usize = parts.iter().map(part_bytes).sum();
    bytes.reserve(length);
    write_count(parts.len(), bytes);
    for part in parts {
        bytes.extend(part.table.to_le_bytes());
        bytes.push(code(part.gradient.format()));
        write_count(part.gradient.len(), bytes);
        write_rows(&part.rows, rows_max(&part.gradient), bytes);
        bytes.extend_from_slice(part.gradient.bytes());
    }
}

/// Reads the parts of a push.
pub fn read_parts(fields: &mut Fields<'_>) -> Option<Vec<Part>> {
    let part = |fields: &mut Fields<'_>| {
        let table = fields.u32().ok()?;
        let format = format(fields.u8().ok()?)?;
        let bytes = count(fields, format.item_bytes())? * format.item_bytes();
        let rows = read_rows(fields, bytes / format.width(1))?;
        let gradient = Values::from_bytes(format, fields.bytes(bytes).ok()?)?;
        Some(Part { table, rows, gradient })
    };
    let parts = count(fields, 14)?;
    (0..parts).map(|_| part(fields)).collect()
}

/// Returns the largest number of rows that values can belong to, which bounds the length of a run.
fn rows_max(gradient: &Values) -> usize {
    gradient.bytes().len() / gradient.format().width(1)
}

/// Returns the approximate size of a part in bytes.
fn part_bytes(part: &Part) -> usize {
    26 + 8 * part.rows.len() + part.gradient.bytes().len()
}

fn code(format: Format) -> u8 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Int8 => 2,
    }
}

fn format(found: u8) -> Option<Format> {
    Format::ALL.into_iter().find(|format| code(*format) == found)
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
