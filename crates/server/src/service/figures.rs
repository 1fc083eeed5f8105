//! Figures of a server, for monitoring.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thinwire_member::Id;

use super::keeper::Keeper;

/// Largest number of workers with a histogram, which bounds the size of the figures.
const WORKERS_MAX: usize = 64;

/// Figures of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Shards of which the server is the primary.
    pub primaries: u64,
    /// Shards of which the server has a copy.
    pub copies: u64,
    /// Written rows in all copies.
    pub rows: u64,
    /// Memory of all copies, in bytes.
    pub bytes: u64,
    /// Bytes of rows that are only on disk.
    pub spilled: u64,
    /// Updates applied to the copies: single pushes, or sums of synchronous steps.
    pub updates: u64,
    /// Acknowledged pushes.
    pub pushes: u64,
    /// Answered pulls.
    pub pulls: u64,
    /// Number of answers to each worker by staleness in steps, without trailing zeros. With more than 64
    /// workers, only those with the smallest ids are listed.
    pub staleness: BTreeMap<String, Vec<u64>>,
}

impl Figures {
    pub(super) fn of(keepers: &[Keeper], id: Id) -> Figures {
        let mut figures = Figures::default();
        let mut staleness: BTreeMap<Id, Vec<u64>> = BTreeMap::new();
        for keeper in keepers {
            figures.count(keeper, id);
            for (worker, histogram) in keeper.shard.staleness() {
                let sum = staleness.entry(*worker).or_default();
                sum.resize(histogram.counts().len(), 0);
                sum.iter_mut().zip(histogram.counts()).for_each(|(sum, count)| *sum += count);
            }
        }
        let told = staleness.into_iter().take(WORKERS_MAX);
        figures.staleness = told.map(|(id, counts)| (id.to_string(), trimmed(counts))).collect();
        figures
    }

    fn count(&mut self, keeper: &Keeper, id: Id) {
        self.primaries += u64::from(keeper.shard.view().primary() == Some(id));
        self.updates += keeper.updates;
        self.pushes += keeper.pushes;
        self.pulls += keeper.pulls;
        let Some(tables) = keeper.tables() else { return };
        self.copies += 1;
        self.rows += tables.tables().iter().map(|table| table.written() as u64).sum::<u64>();
        self.bytes += tables.bytes();
        self.spilled += tables.spilled_bytes();
    }
}

fn trimmed(mut counts: Vec<u64>) -> Vec<u64> {
    let length = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts.truncate(length);
    counts
}
