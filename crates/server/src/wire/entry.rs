//! Serialisation of log entries.

use std::sync::Arc;

use thinwire_member::{Fields, Id};

use super::fields::{count, id, number, write_count, write_u64};
use super::rows::{read_parts, write_parts};
use crate::write::{Entry, PushName, Workers, Write};

const UPDATE: u8 = 0;
const WORKERS: u8 = 1;

/// Size of the shortest entry in bytes: view, kind and two numbers.
const ENTRY_BYTES_MIN: usize = 17;

/// Appends the number of entries and the entries.
pub fn write_entries(entries: &[Entry], bytes: &mut Vec<u8>) {
    write_count(entries.len(), bytes);
    for entry in entries {
        write_u64(entry.view, bytes);
        write_write(&entry.write, bytes);
    }
}

/// Reads entries.
pub fn read_entries(fields: &mut Fields<'_>) -> Option<Vec<Entry>> {
    let entry = |fields: &mut Fields<'_>| {
        Some(Entry { view: fields.u64().ok()?, write: Arc::new(read_write(fields)?) })
    };
    let entries = count(fields, ENTRY_BYTES_MIN)?;
    (0..entries).map(|_| entry(fields)).collect()
}

fn write_write(write: &Write, bytes: &mut Vec<u8>) {
    match write {
        Write::Update { pushes, parts } => {
            bytes.push(UPDATE);
            write_count(pushes.len(), bytes);
            let fields = pushes.iter().flat_map(|push| [push.client.0, push.number, push.step]);
            fields.for_each(|field| write_u64(field, bytes));
            write_parts(parts, bytes);
        }
        Write::Workers(Workers { version, ids }) => {
            bytes.push(WORKERS);
            write_u64(*version, bytes);
            write_count(ids.len(), bytes);
            ids.iter().for_each(|id| write_u64(id.0, bytes));
        }
    }
}

fn read_write(fields: &mut Fields<'_>) -> Option<Write> {
    match fields.u8().ok()? {
        UPDATE => {
            let pushes = count(fields, 24)?;
            let push = |_| {
                let client = id(fields)?;
                Some(PushName { client, number: number(fields)?, step: number(fields)? })
            };
            let pushes = (0..pushes).map(push).collect::<Option<Vec<PushName>>>()?;
            Some(Write::Update { pushes, parts: read_parts(fields)? })
        }
        WORKERS => {
            let version = fields.u64().ok()?;
            let ids = count(fields, 8)?;
            let ids = (0..ids).map(|_| id(fields)).collect::<Option<Vec<Id>>>()?;
            Some(Write::Workers(Workers { version, ids }))
        }
        _ => None,
    }
}
