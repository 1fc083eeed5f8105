//! Pushes, pulls and log entries.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thinwire_member::Id;

use crate::clocks::number;
use crate::values::Values;

/// Gradients of some rows of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Number of the table.
    pub table: u32,
    /// Rows, ascending and without repetitions.
    pub rows: Vec<u64>,
    /// Gradients, row by row.
    pub gradient: Values,
}

/// Gradients of one worker for one shard in one step. It has no parts if the worker has no gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Push {
    /// The worker.
    pub client: Id,
    /// Number of the push among the worker's pushes, from 1; the same in all shards.
    #[serde(deserialize_with = "number")]
    pub number: u64,
    /// Step of the job, from 1. Under `sync`, pushes of one step are one update.
    #[serde(deserialize_with = "number")]
    pub step: u64,
    /// Gradients, at most one part per table, in the order of the tables.
    pub parts: Vec<Part>,
}

/// Request for the values of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// A worker, or a client that only reads.
    pub client: Id,
    /// Number of the request, unique for the client. A repeated request keeps its number.
    pub request: u64,
    /// Number of the client's own pushes that the answer must contain; 0 for a reader.
    pub after: u64,
    /// Rows, by table number.
    pub rows: Vec<(u32, Vec<u64>)>,
}

impl Push {
    /// Returns the push without its gradients.
    pub(crate) fn name(&self) -> PushName {
        PushName { client: self.client, number: self.number, step: self.step }
    }
}

impl Pull {
    /// Returns the number of bytes of the row numbers in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.iter().map(|(_, rows)| size_of::<u64>() * rows.len()).sum()
    }
}

/// List of the workers that push to the shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// Version of the list: the epoch of the workers.
    pub version: u64,
    /// The workers.
    pub ids: Vec<Id>,
}

/// Push without its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushName {
    /// The worker.
    pub client: Id,
    /// Number of the push among the worker's pushes, from 1.
    #[serde(deserialize_with = "number")]
    pub number: u64,
    /// Step of the job, from 1.
    #[serde(deserialize_with = "number")]
    pub step: u64,
}

/// Change of a shard, applied by all replicas in the same order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Write {
    /// One update of some rows.
    Update {
        /// Pushes that the update consists of.
        pushes: Vec<PushName>,
        /// Gradients of the push, or the sum of several pushes.
        parts: Vec<Part>,
    },
    /// A new list of workers.
    Workers(Workers),
}

/// Entry of a shard's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// View in which a primary made the entry. View and position in the log identify an entry.
    pub view: u64,
    /// Write, shared with the messages that carry it.
    #[serde(serialize_with = "write_shared", deserialize_with = "read_shared")]
    pub write: Arc<Write>,
}

/// Writes a shared value like one that is not shared.
fn write_shared<S: Serializer>(write: &Write, serializer: S) -> Result<S::Ok, S::Error> {
    write.serialize(serializer)
}

fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Write>, D::Error> {
    Write::deserialize(deserializer).map(Arc::new)
}

impl Write {
    /// Returns the write of a single push.
    pub(crate) fn single(push: Push) -> Write {
        Write::Update { pushes: vec![push.name()], parts: push.parts }
    }

    /// Returns the sum of the pushes of one step, added as f32 in the order of the clients' ids, so the bits
    /// do not depend on the order of arrival. A single push keeps the format in which it was sent.
    pub(crate) fn sum(mut pushes: Vec<Push>) -> Write {
        pushes.sort_unstable_by_key(|push| push.client);
        let names = pushes.iter().map(Push::name).collect();
        let mut parts: Vec<Part> = Vec::new();
        for part in pushes.into_iter().flat_map(|push| push.parts) {
            match parts.iter_mut().find(|sum| sum.table == part.table) {
                Some(sum) => add(sum, part),
                None => parts.push(part),
            }
        }
        parts.sort_by_key(|part| part.table);
        Write::Update { pushes: names, parts }
    }
}

/// Adds the gradients of `part` to `sum`.
fn add(sum: &mut Part, part: Part) {
    // Equal lists, such as those of pushes of all rows of a table, are summed in place instead of merged.
    if sum.rows == part.rows {
        let mut total =
            std::mem::replace(&mut sum.gradient, Vec::new().into()).into_f32(sum.rows.len());
        let values = part.gradient.decoded(part.rows.len());
        total.iter_mut().zip(&*values).for_each(|(sum, value)| *sum += value);
        sum.gradient = total.into();
        return;
    }
    if sum.rows.is_empty() || part.rows.is_empty() {
        // A part without rows has no width to merge with.
        *sum = if sum.rows.is_empty() { part } else { std::mem::replace(sum, part_of_none()) };
        return;
    }
    *sum = merged(sum, &part);
}

fn part_of_none() -> Part {
    Part { table: 0, rows: Vec::new(), gradient: Vec::new().into() }
}

/// Returns the sum of two parts with ascending rows.
fn merged(left: &Part, right: &Part) -> Part {
    let [a, b] = [left, right].map(|part| part.gradient.decoded(part.rows.len()));
    let width = a.len() / left.rows.len();
    let (mut rows, mut gradient) = (Vec::new(), Vec::new());
    let (mut i, mut j) = (0, 0);
    while i < left.rows.len() || j < right.rows.len() {
        let row = match (left.rows.get(i), right.rows.get(j)) {
            (Some(a), Some(b)) => *a.min(b),
            (a, b) => *a.or(b).expect("one list has rows left"),
        };
        let start = gradient.len();
        gradient.resize(start + width, 0.0);
        for (rows, values, at) in [(&left.rows, &a, &mut i), (&right.rows, &b, &mut j)] {
            if rows.get(*at) == Some(&row) {
                let values = &values[*at * width..][..width];
                gradient[start..].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                *at += 1;
            }
        }
        rows.push(row);
    }
    Part { table: left.table, rows, gradient: gradient.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn push(client: u64, table: u32, rows: &[u64]) -> Push {
        let gradient = rows.iter().flat_map(|row| [*row as f32 + 0.1, client as f32 * 0.3]);
        let gradient = gradient.collect::<Vec<f32>>().into();
        let part = Part { table, rows: rows.to_vec(), gradient };
        Push { client: Id(client), number: 7, step: 9, parts: vec![part] }
    }

    proptest! {
        #[test]
        fn a_sum_has_each_row_once_in_any_order_of_arrival(
            lists in prop::collection::vec(prop::collection::btree_set(0_u64..9, 0..6), 1..5),
            turn in 0_usize..5
        ) {
            let rows = |set: &std::collections::BTreeSet<u64>| set.iter().copied().collect::<Vec<_>>();
            let mut pushes: Vec<Push> =
                (1..).zip(&lists).map(|(client, set)| push(client, 3, &rows(set))).collect();
            let mut expected: BTreeMap<u64, [f32; 2]> = BTreeMap::new();
            for (client, set) in (1..).zip(&lists) {
                for row in set {
                    let sum = expected.entry(*row).or_default();
                    sum[0] += *row as f32 + 0.1;
                    sum[1] += client as f32 * 0.3;
                }
            }
            let turn = turn % pushes.len();
            pushes.rotate_left(turn);
            let Write::Update { pushes, parts } = Write::sum(pushes) else { panic!("no update") };
            prop_assert_eq!(pushes.len(), lists.len());
            prop_assert_eq!(&parts[0].rows, &expected.keys().copied().collect::<Vec<_>>());
            let expected = expected.into_values().flatten().collect::<Vec<f32>>();
            prop_assert_eq!(&parts[0].gradient, &expected.into());
        }
    }

    #[test]
    fn tables_are_summed_apart() {
        let sum = Write::sum(vec![push(2, 1, &[4]), push(1, 0, &[4])]);
        let Write::Update { pushes, parts } = sum else { panic!("no update") };
        let name = |client| PushName { client: Id(client), number: 7, step: 9 };
        assert_eq!(pushes, [name(1), name(2)]);
        assert_eq!(parts.iter().map(|part| part.table).collect::<Vec<_>>(), [0, 1]);
    }
}
