//! Stats of a server, for monitoring.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thinwire_member::Id;

use super::shard_replica::ShardReplica;

/// Largest number of workers with a histogram, which bounds the size of the stats.
const WORKERS_MAX: usize = 64;

/// Stats of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
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

impl Stats {
    pub(super) fn of(replicas: &[ShardReplica], id: Id) -> Stats {
        let mut stats = Stats::default();
        let mut staleness: BTreeMap<Id, Vec<u64>> = BTreeMap::new();
        for replica in replicas {
            stats.count(replica, id);
            for (worker, histogram) in replica.shard.staleness() {
                let sum = staleness.entry(*worker).or_default();
                sum.resize(histogram.counts().len(), 0);
                sum.iter_mut().zip(histogram.counts()).for_each(|(sum, count)| *sum += count);
            }
        }
        let told = staleness.into_iter().take(WORKERS_MAX);
        stats.staleness = told.map(|(id, counts)| (id.to_string(), trimmed(counts))).collect();
        stats
    }

    fn count(&mut self, replica: &ShardReplica, id: Id) {
        self.primaries += u64::from(replica.shard.view().primary() == Some(id));
        self.updates += replica.updates;
        self.pushes += replica.pushes;
        self.pulls += replica.pulls;
        let Some(tables) = replica.tables() else { return };
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
