//! Rows and values in messages.
//!
//! Consecutive rows are sent as a run (its first row and its length), so a dense gradient has no row numbers.
//! Other rows and all gradients are raw little-endian bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thinwire_member::Id;
use thinwire_rows::Format;
use thinwire_wire::raw;

use crate::clocks::number;
use crate::values::Values;
use crate::write::{Part, Pull};

/// Largest number of rows in the runs of one pull. It is limited because a run takes few bytes on the
/// wire, but much memory in the receiver.
pub const PULL_ROWS_MAX: usize = 1 << 18;

/// Rows as they are sent.
#[derive(Serialize, Deserialize)]
pub enum Rows<'a> {
    /// Eight bytes each.
    List(#[serde(borrow, with = "raw")] &'a [u8]),
    /// At least two consecutive rows.
    Run { first: u64, length: u32 },
}

impl<'a> Rows<'a> {
    /// Returns rows as a run, if they are consecutive, at most `max`, and below the largest 64-bit number;
    /// otherwise as a list.
    fn of(rows: &'a [u64], max: usize) -> Rows<'a> {
        let follows = |pair: &[u64]| pair[0].checked_add(1) == Some(pair[1]);
        let ends = rows.last().is_some_and(|last| *last < u64::MAX);
        match ends && (2..=max).contains(&rows.len()) && rows.windows(2).all(follows) {
            true => Rows::Run { first: rows[0], length: rows.len() as u32 },
            false => Rows::List(bytemuck::must_cast_slice(rows)),
        }
    }

    /// Returns the rows; `None` if a run has more than `max` rows.
    fn rows(&self, max: usize) -> Option<Vec<u64>> {
        match *self {
            Rows::Run { first, length } => {
                let end = first.checked_add(u64::from(length))?;
                (2..=max).contains(&(length as usize)).then(|| (first..end).collect())
            }
            Rows::List(bytes) => {
                bytes.len().is_multiple_of(8).then(|| bytemuck::pod_collect_to_vec(bytes))
            }
        }
    }
}

/// Part of a push as it travels.
#[derive(Serialize, Deserialize)]
struct PartFields<'a> {
    table: u32,
    format: Format,
    #[serde(borrow)]
    rows: Rows<'a>,
    #[serde(borrow, with = "raw")]
    values: &'a [u8],
}

impl PartFields<'_> {
    /// Returns the part; `None` if the fields are inconsistent.
    fn part(&self) -> Option<Part> {
        let rows = self.rows.rows(rows_max(self.format, self.values))?;
        let gradient = Values::from_bytes(self.format, self.values)?;
        Some(Part { table: self.table, rows, gradient })
    }
}

/// Returns the largest number of rows that values can belong to, which bounds the length of a run.
fn rows_max(format: Format, values: &[u8]) -> usize {
    values.len() / format.width(1)
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (format, values) = (self.gradient.format(), self.gradient.bytes());
        let rows = Rows::of(&self.rows, rows_max(format, values));
        PartFields { table: self.table, format, rows, values }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Part, D::Error> {
        let part = PartFields::deserialize(deserializer)?.part();
        part.ok_or_else(|| de::Error::custom("rows or values of a wrong length"))
    }
}

/// Pull as it is sent.
#[derive(Serialize, Deserialize)]
pub struct PullFields<'a> {
    pub client: Id,
    pub request: u64,
    #[serde(deserialize_with = "number")]
    pub after: u64,
    #[serde(borrow)]
    pub rows: Vec<(u32, Rows<'a>)>,
}

impl Serialize for Pull {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut max, mut lists) = (PULL_ROWS_MAX, Vec::with_capacity(self.rows.len()));
        for (table, rows) in &self.rows {
            lists.push((*table, Rows::of(rows, max)));
            max = max.saturating_sub(rows.len());
        }
        let Pull { client, request, after, .. } = *self;
        PullFields { client, request, after, rows: lists }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pull {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pull, D::Error> {
        let PullFields { client, request, after, rows } = PullFields::deserialize(deserializer)?;
        let mut max = PULL_ROWS_MAX;
        let table = |(table, sent): &(u32, Rows<'_>)| {
            let rows = sent.rows(max)?;
            max = max.saturating_sub(rows.len());
            Some((*table, rows))
        };
        let rows = rows.iter().map(table).collect::<Option<_>>();
        let rows = rows.ok_or_else(|| de::Error::custom("too many rows, or half of one"))?;
        Ok(Pull { client, request, after, rows })
    }
}
